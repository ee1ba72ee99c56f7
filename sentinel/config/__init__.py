"""Settings, rules and signals: records, and one strict TOML reader. A key is honoured or refused, with file, line and
fix.
"""
