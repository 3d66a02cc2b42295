import pytest

from shoal.benching.samples import sample
from shoal.errors import InvalidInput
from shoal.wire.items import encode_item
from shoal.wire.signature import Signature
from tests.client.wire.signatures import ADDER, MASKED, PICTURES, TIME_FIRST, TWO, UNBATCHED


@pytest.mark.parametrize("sign", [ADDER, TWO, MASKED, TIME_FIRST, UNBATCHED])
def test_a_model_of_numbers_takes_its_sample(sign: Signature) -> None:
    assert encode_item(sample(sign), sign)


def test_pictures_and_texts_have_to_be_given() -> None:
    with pytest.raises(InvalidInput, match=r"takes bytes \(image/jpeg, image/png\).*--item FILE"):
        sample(PICTURES)
