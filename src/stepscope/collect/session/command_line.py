"""The command line of this process for the manifest, without the credentials in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from stepscope.collect.journal.values import text

REDACTED = "<redacted>"

#: Parts of names of secret values.
_SECRET = "(?:key|token|secret|passw(?:or)?d|passphrase|credential|login|auth(?!or))"  # noqa: S105 - a pattern
#: An option that is followed by a secret value.
_OPTION = re.compile(rf"-{{1,2}}[\w.-]*{_SECRET}[\w.-]*", re.IGNORECASE)
#: One that is followed by several.
_SEVERAL = re.compile(rf"-{{1,2}}[\w.-]*{_SECRET}s", re.IGNORECASE)
#: Options whose value is a user and a password, as curl's.
_USER = re.compile(r"-u|--(?:[\w-]*-)?user(?:name)?", re.IGNORECASE)
#: 40 hexadecimal digits, as keys of W&B are, and options whose value of that form is public: a commit or a checksum.
_DIGITS = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_PUBLIC = re.compile(r"[+-]*[\w.-]*(?:rev|commit|sha|hash|ref|digest|checksum|version)", re.IGNORECASE)
#: ``--option=value``, and ``name=value`` as Hydra and ``env`` write it: a whole word.
_ASSIGNED = re.compile(rf"([+~-]*[\w./@-]*{_SECRET}[\w./@-]*[=:]).+", re.IGNORECASE | re.DOTALL)
#: An assignment of a quoted text, in code or JSON.
_QUOTED = re.compile(rf"([\w.-]*{_SECRET}[\w.-]*[\"']?\]?\s*[=:]\s*)([\"'])[^\"']*\2", re.IGNORECASE)
#: An assignment inside of a text: of a part of a URL or connection string, or of a variable of the shell.
_INSIDE = re.compile(
    rf"((?:(?<=[?&;])[\w.-]*(?:{_SECRET}|sig|signature)[\w.-]*"
    r"|(?-i:\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSW(?:OR)?D|CREDENTIAL)[A-Z0-9_]*))=)[^\s&;\"']+",
    re.IGNORECASE,
)
#: Texts that are credentials wherever they stand, by the prefixes that their issuers document.
_CREDENTIAL = re.compile(
    r"""
      (?<![A-Za-z0-9]) (?:
          (?:hf|api_org)_[A-Za-z0-9]{8,}                             # Hugging Face
        | sk-[A-Za-z0-9_-]{8,}                                       # OpenAI, Anthropic
        | (?:gh[opusr]|github_pat)_\w{8,} | glpat-[\w-]{8,}          # GitHub, GitLab
        | (?:AKIA|ASIA)[A-Z0-9]{12,}                                 # AWS
        | AIza[\w-]{20,} | ya29\.[\w-]{8,}                           # Google
        | xox[abeoprs]-[\w-]{8,}                                     # Slack
        | (?:npm_|pypi-|dckr_pat_|nvapi-|wandb_v1_|r8_)[\w-]{8,}     # npm, PyPI, Docker, NVIDIA, W&B, Replicate
        | eyJ[\w-]{4,}\.[\w-]{4,}\.[\w-]*                           # JSON Web Tokens
      )
    | (?<=\bBearer\ )[^\s"',]+ | (?<=\bBasic\ )[A-Za-z0-9+/=]{8,}  # headers of HTTP
    | (?<=://)[^\s/@:"']*:[^\s/@"']*(?=@)                            # user:password@ of a URL
    | (?<=://)[^\s/@:"']{16,}(?=@)                                   # token@ of a URL
    | (?<=://hooks\.slack\.com/services/)[\w/]+                      # addresses that take messages
    | -----BEGIN[\ A-Z]*PRIVATE\ KEY-----.*?(?:-----END[\ A-Z]*-----|$)
    """,
    re.VERBOSE | re.DOTALL,
)


def command_line() -> list[str]:
    """Return the command line of this process; credentials are replaced by :data:`REDACTED`."""
    return [text(word) for word in redacted(getattr(sys, "orig_argv", sys.argv))]


def redacted(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line without credentials.

    These are the values of options and assignments whose name says key, token, secret, password or login, and texts
    with the form of a known credential.
    """
    option = ""  # whose value this word may be
    for word in words:
        # A value may begin with a dash; what begins with two, or is one letter behind one, is the next option.
        value = _OPTION.fullmatch(option) and not re.match(r"--|-.?$", word) and not _OPTION.fullmatch(word)
        if value:
            yield REDACTED
        elif assigned := _ASSIGNED.fullmatch(word):
            yield assigned[1] + REDACTED
        elif _USER.fullmatch(option) and ":" in word:
            yield f"{word.partition(':')[0]}:{REDACTED}"
        else:
            inside = _INSIDE.sub(rf"\1{REDACTED}", _QUOTED.sub(rf"\1\2{REDACTED}\2", word))
            kept = _CREDENTIAL.sub(REDACTED, inside)
            yield kept if _PUBLIC.match(option) or _PUBLIC.match(word) else _DIGITS.sub(REDACTED, kept)
        if word.startswith("-") and not value:
            option = word
        elif not _SEVERAL.fullmatch(option):
            option = ""
