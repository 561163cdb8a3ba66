"""What backward() and the questions about it are given by keyword: options of the objective, and settings of the pass."""

import json

from ._library import InputError


def sort_keywords(engine, objective, options, keywords):
    """({option: text}, {setting: text}) of what was given. Raises InputError for names that are neither, with those that are known."""
    objectives = {kind["name"]: kind for kind in json.loads(engine.objectives())}
    if objective not in objectives:
        raise InputError(f"objective '{objective}': expected one of {', '.join(objectives)}")
    known_options = [option["name"] for option in objectives[objective]["options"]]
    known_settings = [setting["name"] for setting in json.loads(engine.settings())]
    given, settings = {}, {}
    for name, value in (options or {}).items():
        if name not in known_options:
            raise InputError(f"{objective}: no option '{name}', expected some of {', '.join(known_options)}")
        given[name] = value
    if keywords.get("method") == "auto":
        raise InputError("method 'auto': settings are chosen once, before the loop: backward(model, batch, **streambp_bench.choose(model, "
                         "longest_batch, budget).settings)")
    for name, value in keywords.items():
        if name in known_settings:
            settings[name] = value
        elif name not in known_options:
            raise InputError(f"'{name}': neither an option of {objective} ({', '.join(known_options)}) nor a setting "
                             f"({', '.join(known_settings)})")
        elif name in given:
            raise InputError(f"'{name}': given twice, as a keyword and in options")
        else:
            given[name] = value
    return ({name: _text(name, value, "+") for name, value in given.items() if value is not None},
            {name: _text(name, value, ",") for name, value in settings.items() if value is not None})


def _text(name, value, separator):
    """A number, word, switch or list of these as the command line spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return separator.join(_text(name, entry, separator) for entry in value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))  # of NumPy's too
    if not isinstance(value, str):
        raise InputError(f"{name}: a {type(value).__name__}, expected a number, a word, True or False, or a list")
    return value
