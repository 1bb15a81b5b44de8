"""Grok: names for patterns. `%{IP:client}` is an address that becomes the column `client`.

`%{NAME}` matches the pattern of that name, `%{NAME:column}` also keeps what it matched, and
`%{NAME:column:type}` gives the column a type of Spark SQL. The patterns are written for RE2, which has no
lookaround and no back references, and therefore takes time proportional to the text, whatever the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PATTERNS: dict[str, str] = {
    "WORD": r"\b\w+\b",
    "NOTSPACE": r"\S+",
    "SPACE": r"\s*",
    "DATA": r".*?",
    "GREEDYDATA": r".*",
    "QUOTEDSTRING": r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'",
    "BOOL": r"true|false|TRUE|FALSE|True|False",
    "INT": r"[+-]?\d+",
    "POSINT": r"[1-9]\d*",
    "NONNEGINT": r"\d+",
    "NUMBER": r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?",
    "HEXNUMBER": r"(?:0[xX])?[0-9A-Fa-f]+",
    "UUID": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "USERNAME": r"[A-Za-z0-9._-]+",
    "USER": r"%{USERNAME}",
    "EMAILADDRESS": r"[A-Za-z0-9._%+'-]+@%{HOSTNAME}",
    "MAC": r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}",
    "IPV4": r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)",
    "IPV6": r"(?:[0-9A-Fa-f]{0,4}:){2,7}(?:%{IPV4}|[0-9A-Fa-f]{0,4})(?:%[0-9A-Za-z]+)?",
    "IP": r"%{IPV6}|%{IPV4}",
    "HOSTNAME": r"\b(?:[0-9A-Za-z](?:[0-9A-Za-z_-]{0,62}))(?:\.[0-9A-Za-z](?:[0-9A-Za-z_-]{0,62}))*\.?",
    "IPORHOST": r"%{IP}|%{HOSTNAME}",
    "HOSTPORT": r"(?:%{IPORHOST}):%{POSINT}",
    "PATH": r"(?:/[^\s/?#]*)+",
    "URIPROTO": r"[A-Za-z][A-Za-z0-9+.-]*",
    "URIPATH": r"(?:/[^\s?#]*)+",
    "URIPARAM": r"\?[^\s#]*",
    "URIPATHPARAM": r"%{URIPATH}(?:%{URIPARAM})?",
    "URI": r"%{URIPROTO}://(?:%{USER}(?::[^@\s]*)?@)?(?:%{IPORHOST})(?::%{POSINT})?(?:%{URIPATHPARAM})?",
    "MONTH": r"\b(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:tember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b",
    "MONTHNUM": r"0?[1-9]|1[0-2]",
    "MONTHDAY": r"0[1-9]|[12]\d|3[01]|[1-9]",
    "DAY": r"Mon(?:day)?|Tue(?:sday)?|Wed(?:nesday)?|Thu(?:rsday)?|Fri(?:day)?|Sat(?:urday)?|Sun(?:day)?",
    "YEAR": r"\d{4}",
    "HOUR": r"2[0-3]|[01]?\d",
    "MINUTE": r"[0-5]\d",
    "SECOND": r"(?:[0-5]?\d|60)(?:[.,]\d+)?",
    "TIME": r"(?:%{HOUR}):(?:%{MINUTE})(?::%{SECOND})?",
    "ISO8601_TIMEZONE": r"Z|[+-]\d{2}:?\d{2}",
    "TIMESTAMP_ISO8601": r"%{YEAR}-(?:%{MONTHNUM})-(?:%{MONTHDAY})[T ](?:%{HOUR}):?(?:%{MINUTE})"
    r"(?::?%{SECOND})?(?:%{ISO8601_TIMEZONE})?",
    "HTTPDATE": r"(?:%{MONTHDAY})/%{MONTH}/%{YEAR}:%{TIME} [+-]\d{4}",
    "SYSLOGTIMESTAMP": r"%{MONTH} +(?:%{MONTHDAY}) %{TIME}",
    "PROG": r"[!-Z\\^-~]+",
    "SYSLOGPROG": r"%{PROG:program}(?:\[%{POSINT:pid}\])?",
    "LOGLEVEL": r"(?i:trace|debug|info(?:rmation)?|notice|warn(?:ing)?|err(?:or)?|crit(?:ical)?|fatal|severe"
    r"|alert|emerg(?:ency)?)",
    "SYSLOGLINE": r"%{SYSLOGTIMESTAMP:timestamp} %{IPORHOST:host} %{SYSLOGPROG}: %{GREEDYDATA:message}",
    "COMMONLOG": r"%{IPORHOST:client} %{NOTSPACE:ident} %{NOTSPACE:user} \[%{HTTPDATE:timestamp}\] "
    r'"(?:%{WORD:method} %{NOTSPACE:request}(?: HTTP/%{NUMBER:http_version})?|%{DATA:raw_request})" '
    r"%{NONNEGINT:status:INT} (?:%{NONNEGINT:bytes:BIGINT}|-)",
    "COMBINEDLOG": r'%{COMMONLOG} "%{DATA:referrer}" "%{DATA:agent}"',
}
"""What is known by name. nginx writes `COMBINEDLOG` unless it is told otherwise."""

_REFERENCE = re.compile(
    r"%\{(?P<name>\w+)(?::(?P<column>[A-Za-z_]\w*))?(?::(?P<type>[A-Za-z_]+(?:\([\d, ]+\))?))?\}"
)
_DEEPEST = 20
_TYPES = {"int": "INT", "long": "BIGINT", "float": "DOUBLE", "double": "DOUBLE", "boolean": "BOOLEAN"}


class GrokError(Exception):
    """A pattern cannot be expanded; the text says why."""


def expanded(pattern: str, own: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The pattern as RE2 reads it, and the types of its columns where they are given."""
    types: dict[str, str] = {}
    known = {**PATTERNS, **own}

    def expand(text: str, depth: int) -> str:
        if depth > _DEEPEST:
            raise GrokError("patterns name each other without end")

        def replace(match: re.Match[str]) -> str:
            name, column, kind = match["name"], match["column"], match["type"]
            if name not in known:
                raise GrokError(f"there is no pattern {name}")
            if column and kind:
                types[column] = _TYPES.get(kind.lower(), kind)
            inner = expand(known[name], depth + 1)
            return f"(?P<{column}>{inner})" if column else f"(?:{inner})"

        return _REFERENCE.sub(replace, text)

    made = expand(pattern, 0)
    if "%{" in made:
        raise GrokError(
            '"%{" is not followed by a name: write %{NAME}, %{NAME:column} or %{NAME:column:type}'
        )
    return made, types
