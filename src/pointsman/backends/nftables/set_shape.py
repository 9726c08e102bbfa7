"""The part of a set's definition that decides which elements it can hold: sent to the kernel and read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pointsman.backends.nftables.family_traits import FamilyTraits
from pointsman.backends.nftables.key_fields import Field, key_length
from pointsman.backends.nftables.schema import Data, SetSpec
from pointsman.kernel import nf_tables as nf

ENDPOINT_FIELDS = (Field.DESTINATION, Field.PORT)
"""What an endpoint map leads to."""

_TYPE_INTEGER, _TYPE_PROTOCOL, _TYPE_SERVICE = 4, 12, 13
_TYPE_BITS = 6
"""nft numbers the type of a concatenation with six bits per field."""


class SetShape(NamedTuple):
    """Flags, types and lengths, as the kernel stores them."""

    flags: int
    key_type: int
    key_length: int
    data_type: int = 0
    data_length: int = 0


def set_shape(spec: SetSpec, traits: FamilyTraits) -> SetShape:
    flags = (
        (nf.NFT_SET_MAP if spec.data is not Data.NOTHING else 0)
        | (nf.NFT_SET_INTERVAL | nf.NFT_SET_CONCAT if spec.interval else 0)
        | (nf.NFT_SET_TIMEOUT | nf.NFT_SET_EVAL if spec.dynamic else 0)
    )
    key_type, length = _datatype(spec.key, traits), key_length(spec.key, traits)
    if spec.data is Data.VERDICT:
        return SetShape(flags, key_type, length, nf.NFT_DATA_VERDICT)
    if spec.data is Data.ENDPOINT:
        data_type = _datatype(ENDPOINT_FIELDS, traits)
        return SetShape(flags, key_type, length, data_type, key_length(ENDPOINT_FIELDS, traits))
    return SetShape(flags, key_type, length)


def _datatype(fields: Sequence[Field], traits: FamilyTraits) -> int:
    numbers = {
        Field.SOURCE: traits.address_datatype,
        Field.DESTINATION: traits.address_datatype,
        Field.PROTOCOL: _TYPE_PROTOCOL,
        Field.PORT: _TYPE_SERVICE,
        Field.SLOT: _TYPE_INTEGER,
    }
    value = 0
    for field in fields:
        value = value << _TYPE_BITS | numbers[field]
    return value
