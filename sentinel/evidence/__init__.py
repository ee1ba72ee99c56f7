"""One reader for each source: raw output in, ``Evidence`` out, with where, when and from which source it is. What cannot be
read is evidence of kind ``unreadable``. Never decides what follows. Pure.
"""
