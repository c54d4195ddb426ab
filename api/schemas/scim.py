"""What a provider of accounts sees of a user and a group by SCIM 2.0: the attributes that there are here.

Loaded with the first request for it: the library's models take half a second.

Source: RFC 7643 (schemas), RFC 7644 (protocol).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from scim2_models import (
    URN,
    AuthenticationScheme,
    Bulk,
    CaseExact,
    ChangePassword,
    ComplexAttribute,
    ETag,
    External,
    Filter,
    Mutability,
    Patch,
    Reference,
    Required,
    Resource,
    ResourceType,
    Schema,
    ScimPolicy,
    ServiceProviderConfig,
    Sort,
    Uniqueness,
)

#: The most of a list that one answer has.
MOST = 200
#: Providers send more of a person than is kept here, and take liberties with the standard.
LENIENT = ScimPolicy(unknown=ScimPolicy.Unknown.ignore, remove_value_as_filter=ScimPolicy.RemoveValue.apply)


class Membership(ComplexAttribute):
    """A group that a user is in."""

    value: Annotated[str | None, Mutability.read_only, CaseExact.true] = None
    display: Annotated[str | None, Mutability.read_only] = None


class User(Resource[Any]):
    """An account that the provider has made or taken over."""

    __schema__ = URN("urn:ietf:params:scim:schemas:core:2.0:User")

    user_name: Annotated[str | None, Required.true, Uniqueness.server] = None
    display_name: str | None = None
    active: bool | None = None
    groups: Annotated[list[Membership] | None, Mutability.read_only] = None


class Member(ComplexAttribute):
    """A user in a group, by the id."""

    value: Annotated[str | None, Mutability.immutable, CaseExact.true] = None
    ref: Annotated[Reference[User] | None, Mutability.immutable] = Field(
        None, serialization_alias="$ref", validation_alias="$ref"
    )


class Group(Resource[Any]):
    """A group that the provider has made."""

    __schema__ = URN("urn:ietf:params:scim:schemas:core:2.0:Group")

    display_name: Annotated[str | None, Required.true, Uniqueness.server] = None
    members: list[Member] | None = None


RESOURCE_TYPES = [ResourceType.from_resource(model) for model in (User, Group)]
SCHEMAS: list[Schema] = [model.to_schema() for model in (User, Group)]
CONFIG = ServiceProviderConfig(
    documentation_uri=Reference[External]("https://www.rfc-editor.org/rfc/rfc7644"),
    patch=Patch(supported=True),
    bulk=Bulk(supported=False, max_operations=0, max_payload_size=0),
    filter=Filter(supported=True, max_results=MOST),
    change_password=ChangePassword(supported=False),
    sort=Sort(supported=False),
    etag=ETag(supported=False),
    authentication_schemes=[
        AuthenticationScheme(
            type=kind,
            name=name,
            description=f"{name}: the cluster's scim_token",
            primary=kind.value == "oauthbearertoken",
        )
        for kind, name in (
            (AuthenticationScheme.Type.oauthbearertoken, "Bearer token"),
            (AuthenticationScheme.Type.httpbasic, "HTTP basic, as the password of any name"),
        )
    ],
)
