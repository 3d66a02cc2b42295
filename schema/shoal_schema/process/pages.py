"""Response headers of HTML pages.

A page is one file that sends requests to its own server only. Its content security policy names the script and the
style that may run, and forbids converting text to HTML, so that names of models and services cannot inject HTML.
"""

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping


def page_headers(page: str) -> Mapping[str, str]:
    """Return the response headers of a page with one inline script and one inline style."""
    policy = (
        "default-src 'none'",
        f"script-src {_hash(page, 'script')}",
        f"style-src {_hash(page, 'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
    return {
        "content-security-policy": "; ".join(policy),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hash(page: str, tag: str) -> str:
    # The hash covers the exact text between the tags.
    [content] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
