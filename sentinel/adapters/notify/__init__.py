"""Receivers of notices. Each call is one attempt: ``Unavailable`` if a retry may help, ``Refused`` if not."""
