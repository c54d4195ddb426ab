"""Single sign-on by OpenID Connect: what an identity provider is asked, and what of its answers is believed.

The authorization code flow with PKCE. What a browser has to bring back is in a cookie that only this API can have made,
so that any process of the API may finish what another began.

Source: OpenID Connect Core 1.0 §3.1, Discovery 1.0; RFC 7636 (PKCE), RFC 9700 (best current practice).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlencode

import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, OctKey

from api.errors import Unavailable
from api.settings import SignOnSettings

if TYPE_CHECKING:  # loaded where a provider is asked: most clusters have none
    import httpx2

log = structlog.get_logger()

#: How providers sign: none of it with a secret that a client could know.
_SIGNED = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_REQUEST_S = 10.0
_KNOWN_S = 3600.0
#: For a person to log in at the provider.
FLOW_S = 600
_LEEWAY_S = 60
_LARGEST = 1 << 20
_LONGEST_NAME = 120
_MOST_GROUPS = 1000

Relay = Literal["web", "cli"]


class Refusal(Exception):
    """Nobody is logged in. `reason` is one of those that the login page has a sentence for."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Identity:
    """Whom the provider vouches for.

    Attributes:
        username: By the claim that the settings name.
        display_name: Empty, if the provider says none.
        groups: By the claim that the settings name; None: they name none, or it is not there.
    """

    username: str
    display_name: str
    groups: list[str] | None


@dataclass(frozen=True)
class Flow:
    """What a browser brings back in its cookie: who asked, and where it wants to go."""

    state: str
    nonce: str
    verifier: str
    relay: Relay
    to: str


class SignOn:
    """One identity provider.

    Args:
        settings: Of it.
        secret: Of the cluster: what flows are signed with.
    """

    def __init__(self, settings: SignOnSettings, secret: str) -> None:
        self._settings = settings
        self._key = OctKey.import_key(hashlib.sha256(b"undeterred sign-on\0" + secret.encode()).digest())
        self._known: tuple[float, Mapping[str, Any], KeySet] | None = None
        self._lock = asyncio.Lock()

    @property
    def is_offered(self) -> bool:
        """Whether the operator named a provider."""
        return bool(self._settings.oidc_issuer)

    @property
    def providers(self) -> list[dict[str, Any]]:
        """As `/info` has them."""
        if not self.is_offered:
            return []
        return [
            {
                "name": self._settings.oidc_provider_name,
                "sso_url": f"{self._settings.oidc_public_url}/oidc/sso",
                "type": "OIDC",
                "always_redirect": self._settings.oidc_always_redirect,
            }
        ]

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the API by TLS."""
        return self._settings.oidc_public_url.startswith("https://")

    async def begin(self, relay: Relay, to: str) -> tuple[str, str]:
        """Where a browser is sent, and the cookie that it brings back. Raises: Unavailable."""
        metadata, _ = await self._provider()
        flow = Flow(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), relay, to)
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=flow.state,
                nonce=flow.nonce,
                code_verifier=flow.verifier,
            )
        claims = {**flow.__dict__, "exp": int(time.time()) + FLOW_S}
        return str(url), jwt.encode({"alg": "HS256"}, claims, self._key)

    def flow_of(self, cookie: str, state: str) -> Flow:
        """The flow that a browser began here. Raises: Refusal("stale")."""
        try:
            claims = jwt.decode(cookie, self._key, algorithms=["HS256"]).claims
            jwt.JWTClaimsRegistry(exp={"essential": True}).validate(claims)
        except (JoseError, ValueError):
            raise Refusal("stale") from None
        flow = Flow(**{name: claims[name] for name in ("state", "nonce", "verifier", "relay", "to")})
        if not secrets.compare_digest(flow.state.encode(), state.encode("utf-8", "surrogatepass")):
            raise Refusal("stale")
        return flow

    async def identity(self, flow: Flow, code: str) -> Identity:
        """Whom the provider logged in. Raises: Refusal("failed"), Unavailable."""
        import httpx2
        from authlib.integrations.base_client import OAuthError

        metadata, _ = await self._provider()
        try:
            async with self._client() as client:
                answer: Mapping[str, Any] = await client.fetch_token(
                    metadata["token_endpoint"], code=code, code_verifier=flow.verifier, grant_type="authorization_code"
                )
        except (OAuthError, httpx2.HTTPStatusError, ValueError) as error:
            log.warning("the identity provider did not take a code", error=str(error)[:300])
            raise Refusal("failed") from None
        except httpx2.HTTPError as error:
            raise Unavailable(f"the identity provider does not answer: {error!r}") from None
        return self._believed(await self._claims(str(answer.get("id_token") or ""), flow.nonce))

    def _believed(self, claims: Mapping[str, Any]) -> Identity:
        settings = self._settings
        name = claims.get(settings.oidc_username_claim)
        if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or not name.isprintable():
            log.warning("the identity provider names no user", claim=settings.oidc_username_claim)
            raise Refusal("unnamed")
        # an address that nobody has confirmed may be anybody's
        if settings.oidc_username_claim == "email" and claims.get("email_verified") is not True:
            raise Refusal("unverified")
        said: Any = claims.get(settings.oidc_groups_claim) if settings.oidc_groups_claim else None
        groups = [str(each) for each in cast("list[Any]", said)[:_MOST_GROUPS]] if isinstance(said, list) else None
        display = claims.get("name")
        return Identity(
            username=name,
            display_name=display if isinstance(display, str) else "",
            groups=groups,
        )

    async def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        """What an ID token says, if it is this provider's, for us, of now and of this flow."""
        metadata, keys = await self._provider()
        try:
            try:
                claims = jwt.decode(token, keys, algorithms=_SIGNED).claims
            except (JoseError, ValueError):  # it has new keys, perhaps
                _, keys = await self._provider(anew=True)
                claims = jwt.decode(token, keys, algorithms=_SIGNED).claims
        except (JoseError, ValueError) as error:
            log.warning("the identity provider's token can't be used", error=str(error)[:300])
            raise Refusal("failed") from None
        client_id = self._settings.oidc_client_id
        registry = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": metadata["issuer"]},
            aud={"essential": True, "value": client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            registry.validate(claims)
            if claims.get("azp", client_id) != client_id:
                raise ValueError("azp: it is for another client")
        except (JoseError, ValueError) as error:
            log.warning("the identity provider's token can't be used", error=str(error)[:300])
            raise Refusal("failed") from None
        return claims

    def _client(self) -> Any:
        from authlib.integrations import httpx_client

        settings = self._settings
        create: Any = httpx_client.AsyncOAuth2Client  # without types
        return create(
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret.get_secret_value(),
            redirect_uri=f"{settings.oidc_public_url}/oidc/callback",
            scope=settings.oidc_scopes,
            code_challenge_method="S256",
            timeout=_REQUEST_S,
        )

    async def _provider(self, *, anew: bool = False) -> tuple[Mapping[str, Any], KeySet]:
        """Its metadata and keys; asked at most once an hour, or when a token has an unknown key."""
        import httpx2

        async with self._lock:
            now = time.monotonic()
            known = self._known
            if known is not None and now - known[0] < (_LEEWAY_S if anew else _KNOWN_S):
                return known[1], known[2]
            issuer = self._settings.oidc_issuer
            try:
                async with httpx2.AsyncClient(timeout=_REQUEST_S) as client:
                    metadata = await _document(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
                    if metadata.get("issuer") != issuer:
                        raise ValueError(f"it calls itself {metadata.get('issuer')!r}, and oidc_issuer is {issuer!r}")
                    keys = KeySet.import_key_set(await _document(client, str(metadata["jwks_uri"])))  # pyright: ignore[reportArgumentType]
            except (httpx2.HTTPError, JoseError, KeyError, ValueError) as error:
                log.warning("the identity provider can't be used", issuer=issuer, error=str(error)[:300])
                if known is not None:
                    return known[1], known[2]
                raise Unavailable("the identity provider does not answer as expected: see the log of the API") from None
            self._known = now, metadata, keys
            return metadata, keys


async def _document(client: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    response = (await client.get(url)).raise_for_status()
    found: Any = response.json() if len(response.content) <= _LARGEST else None
    if not isinstance(found, dict):
        raise ValueError(f"{url}: expected a JSON object")
    return cast("dict[str, Any]", found)


def login_page(reason: str, to: str) -> str:
    """The address of the login page that says why nobody is logged in."""
    return "/det/login?" + urlencode({"refused": reason, "redirect": to} if to else {"refused": reason})
