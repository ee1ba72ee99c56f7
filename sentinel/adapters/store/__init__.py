"""The store over SQLAlchemy: SQLite or PostgreSQL. ``changes`` writes one decision in one transaction, ``loading`` reads
what a start needs, ``retention`` forgets; ``migrations`` brings an older schema to this one.
"""
