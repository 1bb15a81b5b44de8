"""Handing a mail over, recipient by recipient.

Invariants: a mail is delivered when the server has taken it for every recipient. Those for whom it said
"later" (4xx, a lost connection) are asked for again; those for whom it said "never" (5xx) are named when the
others are decided. Who has a mail already is not sent it again by this run, whichever process of the machine
goes on; a repeat from elsewhere is known by its `Message-ID`.
"""

from __future__ import annotations

from dataclasses import dataclass

from signoff.errors import TransientError
from signoff.sinks.email.message import Mail
from signoff.sinks.email.session import Server, Session
from signoff.sinks.machine_notes import Notes

_MOST_LOST = 2
"""Connections in a row that broke or did not come about, after which the rest of a write is not tried."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Why somebody does not have a mail."""

    reason: str
    transient: bool


_of_runs, _of_this_process = Notes("mails"), Notes("mails", shared=False)
"""Who has a mail that others still wait for, by the run and the mail. Where no run is known a mail that is
alike may be another one, of a state that began anew: such notes do not outlive the process."""


class Postman:
    """Sends mails over one connection, which is made when it is needed and again when it broke."""

    def __init__(self, server: Server, run: str = "") -> None:
        self._server, self._run = server, run
        self._have = _of_runs if run else _of_this_process
        self._session: Session | None = None
        self._lost = 0

    def begin(self) -> None:
        """Another write: a server that did not answer is asked again."""
        self._lost = 0

    def deliver(self, mail: Mail) -> Undelivered | None:
        """Hand the mail over; None when everybody has it."""
        about = f"{self._run} {mail.id}"
        have = frozenset(self._have.read(about) or ())
        left = [one for one in mail.recipients if one not in have]
        if self._lost >= _MOST_LOST:
            return Undelivered(f"not sent: {self._server} does not answer", transient=True)
        try:
            self._session = self._session or Session(self._server)
            refused = self._session.send(mail.sender, left, mail.content) if left else {}
        except TransientError as error:
            self._lost += 1
            self.drop()
            return Undelivered(str(error), transient=True)
        self._lost = 0
        if not refused:
            if have:
                self._have.forget(about)
            return None
        if taken := have | (set(left) - refused.keys()):
            self._have.write(about, sorted(taken))
        later = {one: answer for one, answer in refused.items() if not answer.permanent}
        said = "; ".join(f"{one}: {answer}" for one, answer in (later or refused).items())
        others = len(mail.recipients) - len(refused)
        also = f" ({others} of {len(mail.recipients)} recipients have it)" if others else ""
        return Undelivered(f"{self._server} refuses {said}{also}", transient=bool(later))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def drop(self) -> None:
        if self._session is not None:
            self._session.drop()
            self._session = None
