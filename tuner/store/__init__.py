"""What is remembered: windows, fits, schedules, findings, events, and who leads. SQLite or PostgreSQL.

Imported where a database is needed and not before: SQLAlchemy and alembic cost 0.3 s.
"""

from tuner.store.lease import LeaseKeeper
from tuner.store.records import (
    Deleted,
    EventRecord,
    FindingRecord,
    FitRecord,
    RollUp,
    ScheduleRecord,
)
from tuner.store.schema import Revision
from tuner.store.store import Store, open_store

__all__ = [
    "Deleted",
    "EventRecord",
    "FindingRecord",
    "FitRecord",
    "LeaseKeeper",
    "Revision",
    "RollUp",
    "ScheduleRecord",
    "Store",
    "open_store",
]
