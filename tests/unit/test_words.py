"""The check of our words: what the glossary refuses is found in pages, docstrings and messages, and nowhere else."""

from __future__ import annotations

from docs.words import found, problems, prose, refused, texts


def test_the_glossary_says_what_is_refused_and_what_to_write() -> None:
    words = refused()
    assert len(words) >= 20
    assert words["for ever"].startswith("indefinitely")
    assert "retry" not in words, "rows without quotes are advice"


def test_a_planted_word_is_found_with_its_line() -> None:
    page = "It waits\nfor\never.\n\nSomebody else is told.\n"
    assert [line for line, _ in problems(page, refused())] == [2, 5, 5]
    assert list(problems("Others wait forever; he-lo the here.", {"the": "x"})) == [(1, '"the": write x')]


def test_code_in_a_page_is_not_read() -> None:
    page = "Set `for ever`.\n\n```sh\necho he is told\n```\n\n[x](somebody.md) he\n"
    assert [line for line, _ in problems(prose(page), refused())] == [7]


def test_docstrings_and_messages_are_read_and_names_are_not() -> None:
    source = '"""A module.\n\nSomebody reads it.\n"""\nsomebody = "he"\nsay(f"{somebody} is told so")\n'
    read = [(start + line - 1, what) for start, text in texts(source) for line, what in problems(text, refused())]
    assert [(line, what.partition(":")[0]) for line, what in read] == [(3, '"Somebody"'), (6, '"is told"')]


def test_the_project_keeps_to_it() -> None:
    assert list(found()) == []
