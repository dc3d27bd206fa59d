"""Opens the bucket of a URI with obstore: standard credentials, timeouts, repetitions; and says what its errors mean.

    s3://BUCKET/PATH       AWS_ACCESS_KEY_ID and so on, AWS_PROFILE, the role of the host; AWS_ENDPOINT_URL
    gs://BUCKET/PATH       GOOGLE_APPLICATION_CREDENTIALS, the service account of the host; GOOGLE_BASE_URL
    az://CONTAINER/PATH    AZURE_STORAGE_ACCOUNT_NAME, its key, token or identity; AZURE_STORAGE_ENDPOINT

An endpoint may have http: if an environment variable says so.
"""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from backedge.recovery.stores.names import parts_of
from backedge.recovery.stores.store_errors import StoreError, UnknownStoreError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Client = S3Store | GCSStore | AzureStore

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ENDPOINT = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[^\s/:\[\]]+)(:\d+)?(/\S*)?")
_AWS_CREDENTIALS = (
    *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# Hosts answer these addresses with the credentials of their role. They are asked if no others are set.
_ROLE_ADDRESSES = ("169.254.169.254", "metadata.google.internal", "metadata/identity")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


@dataclass(frozen=True, slots=True)
class Repeats:
    """How long one request may take, and how often it is repeated. Pauses double, and are drawn at random up to that.

    `request_s`: seconds for a request with its body, which has at most 8 MB. `times`: repetitions of a request.
    """

    request_s: float = 30.0
    connect_s: float = 5.0
    times: int = 6
    pause_s_first: float = 0.1
    pause_s_max: float = 5.0

    def turns(self) -> Iterator[int]:
        """Number the turns of a call that is repeated, with a pause before each but the first."""
        yield 0
        for turn in range(self.times):
            time.sleep(random.uniform(0, min(self.pause_s_first * 2**turn, self.pause_s_max)))
            yield turn + 1


class Address(NamedTuple):
    """A location, taken apart: `prefix` begins the names of all files."""

    scheme: str
    bucket: str
    prefix: str


def address_of(location: str) -> Address:
    """Take a location apart.

    >>> address_of("s3://bucket/cuts/of-may/")
    Address(scheme='s3', bucket='bucket', prefix='cuts/of-may')
    """
    scheme, _, rest = location.partition("://")
    bucket, _, path = rest.partition("/")
    prefix = path.rstrip("/")
    if not bucket or (prefix and parts_of(prefix) is None):
        container = "CONTAINER" if scheme == "az" else "BUCKET"
        raise StoreError(
            f"{location} does not name a place in an object store: write {scheme}://{container}/PATH, where PATH has "
            "neither empty parts nor '..'"
        )
    return Address(scheme.lower(), bucket, prefix)


def client_of(address: Address, repeats: Repeats, location: str) -> Client:
    """A client of the bucket. Nothing is sent yet."""
    endpoints = {name: os.environ[name] for name in _ENDPOINTS[address.scheme] if os.environ.get(name)}
    for name, endpoint in endpoints.items():
        if not _ENDPOINT.fullmatch(endpoint):  # the client would panic
            raise StoreError(f"{name}={endpoint} is no address of a server: write http://HOST:PORT or https://HOST")
    options: ClientConfig = {
        "timeout": timedelta(seconds=repeats.request_s),
        "connect_timeout": timedelta(seconds=repeats.connect_s),
        "allow_http": any(endpoint.startswith("http://") for endpoint in endpoints.values()),
    }
    retries: RetryConfig = {
        "max_retries": repeats.times,
        "retry_timeout": timedelta(seconds=repeats.request_s * (repeats.times + 1)),
        "backoff": {
            "init_backoff": timedelta(seconds=repeats.pause_s_first),
            "max_backoff": timedelta(seconds=repeats.pause_s_max),
            "base": 2,
        },
    }
    common: Any = {"client_options": options, "retry_config": retries}
    try:
        match address.scheme:
            case "s3":
                # S3 itself refuses to copy over an object in this way only; other servers have headers for it.
                how = os.environ.get("AWS_COPY_IF_NOT_EXISTS", "multipart")
                provider = _of_profile(location)
                return S3Store(address.bucket, credential_provider=provider, copy_if_not_exists=how, **common)
            case "gs":
                return GCSStore(address.bucket, **common)
            case _:
                return AzureStore(address.bucket, **common)
    except (BaseError, ValueError) as error:
        raise StoreError(
            f"{location} cannot be opened ({fact_of(error)}): set {_CREDENTIALS[address.scheme]} on all hosts, or "
            "correct them"
        ) from error


def _of_profile(location: str) -> Any:
    """The credentials of a profile, in the files of the AWS command line; None if others are set."""
    if any(name in os.environ for name in _AWS_CREDENTIALS):
        return None
    files = (
        Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser(),
        Path(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser(),
    )
    is_named = "AWS_PROFILE" in os.environ
    if not is_named and not any(file.exists() for file in files):
        return None
    try:
        # Reads profiles as the AWS command line does: roles and single sign-on, too.
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as error:
        if not is_named:
            return None
        raise UnknownStoreError(
            f"{location} cannot be opened: AWS_PROFILE is set, and reading profiles needs the package {error.name!r}; "
            "install backedge[s3] on all hosts"
        ) from error
    try:
        return Boto3CredentialProvider()
    except Exception as error:  # boto3 raises errors of many kinds for a profile
        if not is_named:
            return None
        raise StoreError(
            f"{location} cannot be opened: the profile {os.environ['AWS_PROFILE']!r} of AWS_PROFILE gives no "
            f"credentials ({error}); correct the profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error


def as_ours(error: Exception, path: str) -> Exception:
    """What an error of obstore is called in the protocol of stores."""
    scheme = path.partition("://")[0]
    text = str(error)
    # First: whatever answers these addresses may say in its own words that there is no such thing.
    if any(address in text for address in _ROLE_ADDRESSES):
        return PermissionError(
            errno.EACCES,
            f"no credentials were found, and this host has no role of its own: set {_CREDENTIALS[scheme]} on all hosts",
            path,
        )
    if any(mark in text for mark in _NO_BUCKET):
        bucket = "/".join(path.split("/")[:3])
        return StoreError(f"{path} cannot be reached: {bucket} does not exist; create it, or give another location")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "No such object", path)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return PermissionError(
            errno.EACCES,
            f"access was denied ({fact_of(error)}): give these credentials the rights to read, write, list and delete "
            "there, or set others",
            path,
        )
    return OSError(errno.EIO, f"the object store did not answer as expected ({fact_of(error)})", path)


def fact_of(error: BaseException) -> str:
    """What happened, in a line: of an answer, its code and message.

    >>> fact_of(ValueError("503: <Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"))
    'SlowDown: Reduce your rate'
    """
    text = str(error).split("\n\nDebug source")[0]
    said = [part for tag in ("Code", "Message") for part in re.findall(rf"<{tag}>([^<]*)</{tag}>", text)[:1]]
    return ": ".join(part.split("\n")[0] for part in said) if said else " ".join(text.split())[:300]
