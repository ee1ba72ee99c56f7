"""Receivers of notices. Each delivers once; what can be tried again raises ``Unavailable``, what cannot ``Refused``."""
