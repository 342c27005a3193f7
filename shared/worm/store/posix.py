"""File locks as POSIX has them. Every module that keeps a directory takes `fcntl` from here.

Windows has no `flock`, cannot rename over an open file and cannot sync a folder. There, importing this module raises an
`Invalid` that says what to use instead. A bucket needs nothing of it.
"""

from __future__ import annotations

from worm.errors import Invalid

try:
    import fcntl as fcntl
except ImportError as error:
    raise Invalid(
        "a directory as a store needs the file locks of Linux or macOS, which this system lacks",
        hint="use WSL, or a bucket (s3://bucket)",
    ) from error
