"""Exit codes are unique and documented."""

from longspan import errors


def subclasses(cls: type[errors.LongspanError]) -> list[type[errors.LongspanError]]:
    """All error classes below one."""
    return [cls, *(found for sub in cls.__subclasses__() for found in subclasses(sub))]


def test_exit_codes_are_unique_and_free_for_errors() -> None:
    """No two errors share a code, and none takes 0, 1, 2 or 130."""
    codes = [cls.exit_code for cls in subclasses(errors.LongspanError)]
    assert len(codes) == len(set(codes))
    assert not {0, 1, 2, 130} & set(codes)


def test_every_error_says_what_it_is() -> None:
    """Each class has a docstring, which docs/exit-codes.md prints."""
    assert all(cls.__doc__ for cls in subclasses(errors.LongspanError))
