"""One message per incident. In: incident, verdict, plan, outcomes. Out: a ``Notice`` in plain words."""

from sentinel.alerts.compose import compose

__all__ = ["compose"]
