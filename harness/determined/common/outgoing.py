"""Which addresses a process of the cluster may connect to when a user says where: webhooks, buckets, storage accounts.

These processes run inside the cluster's network and have its rights. So what a user names is reached on the public
internet only, or in a network that the operator allows; at the very address that was looked at, so that a name can't
mean another one a moment later; and with the user's credentials, never the machine's own. Containers are the user's:
nothing of this holds there.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Union

    Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
    Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Refused(OSError):
    """This address is not for us; trying again would not help."""


@dataclasses.dataclass(frozen=True)
class Outgoing:
    """What an operator allows.

    Attributes:
        networks: Reached besides the public internet.
        own_buckets: Storages that may be used with the machine's own credentials, as `s3://bucket`, `gs://bucket`
            or `ms://account.blob.core.windows.net/container`.
    """

    networks: tuple[Network, ...] = ()
    own_buckets: frozenset[str] = frozenset()

    @classmethod
    def of(cls, networks: str = "", own_buckets: str = "") -> Outgoing:
        """From two texts, each with commas between its parts.

        Raises:
            ValueError: A part is no network, or no bucket's URL; says which.
        """
        found: list[Network] = []
        for part in _parts(networks):
            try:
                found.append(ipaddress.ip_network(part))
            except ValueError as e:
                raise ValueError(f"{part!r} is no network such as 10.0.0.0/8: {e}") from None
        buckets = frozenset(part.rstrip("/") for part in _parts(own_buckets))
        for bucket in buckets:
            slashes = {"s3": 2, "gs": 2, "ms": 3}.get(bucket.partition("://")[0])
            if bucket.count("/") != slashes:
                raise ValueError(f"{bucket!r}: expected s3://bucket, gs://bucket or ms://account/container")
        return cls(tuple(found), buckets)

    def permits(self, address: Address) -> bool:
        """Whether an address may be connected to."""
        address = _meant(address)
        if is_public(address):
            return True
        # Metadata services and the like have to be named themselves: a network that holds everything is not enough.
        special = address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved
        return any(
            address in network and (not special or network.prefixlen >= (16 if network.version == 4 else 64))
            for network in self.networks
            if network.version == address.version
        )

    def judged(self, host: str, found: Iterable[Any]) -> list[str]:
        """The addresses of a name, as `getaddrinfo` gives them, if all of them are permitted.

        Raises:
            Refused: One is not.
        """
        addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
        for address in addresses:
            if not self.permits(ipaddress.ip_address(address)):
                raise Refused(f"{host} is {address}, which is not on the public internet")
        return addresses

    def connect(
        self, host: str, port: int, timeout_s: float | None = None, options: Iterable[Any] = ()
    ) -> socket.socket:
        """A connection to one of the addresses of a name, which is looked up once.

        Raises:
            Refused: One of them is not permitted.
            OSError: No address answers.
        """
        failed: OSError = OSError(f"{host} has no address")
        for address in self.judged(host, socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                for option in options:
                    connection.setsockopt(*option)
                connection.settimeout(timeout_s)
                connection.connect((address, port))
                return connection
            except OSError as e:
                connection.close()
                failed = e
        raise failed

    def check_url(self, url: str) -> None:
        """Look at an address before anything is sent there. One that nobody knows is found out by who connects.

        Raises:
            Refused: It is no http or https address, or not permitted.
        """
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as e:
            raise Refused(f"it is no address: {e}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise Refused("it is no http or https address")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return
        self.judged(host, found)


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet; those that stand for IPv4 ones are judged as these."""
    if isinstance(address, ipaddress.IPv6Address) and address.teredo is not None:
        return False
    address = _meant(address)
    return address.is_global and not address.is_multicast and not address.is_reserved


def _meant(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


_site = Outgoing()


def configure(rules: Outgoing) -> None:
    """What the operator allows this process, from now on."""
    global _site
    _site = rules


def site() -> Outgoing:
    """What the operator allows this process; nothing but the public internet, unless `configure` says otherwise."""
    return _site


def guarded_pools(rules: Outgoing, pools: dict[str, Any]) -> dict[str, Any]:
    """Connection pools of urllib3, by scheme, whose connections go where `rules` permit and nowhere else."""
    return {scheme: _guarded_pool(rules, pool) for scheme, pool in pools.items()}


def _guarded_pool(rules: Outgoing, pool: Any) -> Any:
    connection: Any = pool.ConnectionCls

    def connect(self: Any) -> socket.socket:
        from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

        timeout_s = self.timeout if isinstance(self.timeout, (int, float)) else None
        try:
            return rules.connect(self._dns_host, self.port, timeout_s, self.socket_options or ())
        except TimeoutError as e:
            raise ConnectTimeoutError(self, f"{self.host} does not answer within {timeout_s} s") from e
        except OSError as e:
            raise NewConnectionError(self, str(e)) from e

    guarded = type(f"Guarded{connection.__name__}", (connection,), {"_new_conn": connect})
    return type(f"Guarded{pool.__name__}", (pool,), {"ConnectionCls": guarded})
