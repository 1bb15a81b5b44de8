"""The intake: the process that owns a source's connection.

It receives events, appends them to the log, and tells the source once they are settled. One process per
source, started by the run as `python -m signoff.intake` with its `Instructions` on its standard input; the
end of that input is the end of the run.
"""

from signoff.intake.instructions import Instructions
from signoff.intake.status import IntakeState, Status, read_status

__all__ = ["Instructions", "IntakeState", "Status", "read_status"]
