"""Every error that the project raises on purpose.

TunerError
├── InputError          a file, a body or an argument that cannot be used
│   ├── ExpositionError     a metrics body that is not the text exposition format
│   ├── RecordingError      a folder of scrapes that holds none, or unreadable ones
│   └── SweepError          a benchmark table with a missing column or a bad cell
├── ScheduleError       a schedule that breaks its own rules, or an engine's
│   └── UnsupportedError    the engine or this version of it has no such thing
└── StoreError          the database cannot be used now, or not at all
    └── FencedError         another process has taken the lead since

A message is one line, names the place and says what to do. The command line prints it after
``error: `` and leaves with exit code 2.
"""


class TunerError(Exception):
    """Base of all errors raised on purpose; never raised itself."""


class InputError(TunerError):
    """Something that came in cannot be used."""


class ExpositionError(InputError):
    """A body that is not valid text exposition, whole and within bounds."""

    def __init__(self, message: str, *, reason: str = "malformed") -> None:
        """Keep ``reason``, one word for what is wrong, beside the message for people."""
        super().__init__(message)
        self.reason = reason


class RecordingError(InputError):
    """A recording without a usable scrape."""


class SweepError(InputError):
    """A benchmark table with a missing column or an unusable cell."""


class ScheduleError(TunerError):
    """A schedule that breaks the rules for schedules."""


class UnsupportedError(ScheduleError):
    """The engine, or this version of it, cannot do what was asked."""


class StoreError(TunerError):
    """The database did not take or give what was asked; nothing of the unit of work was kept."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        """Keep whether the same call can succeed later without anyone changing it: keep the data and wait."""
        super().__init__(message)
        self.retryable = retryable


class FencedError(StoreError):
    """A write by a process that no longer leads: another one holds a higher fence. Stand by."""
