"""`gir explain`: where a request would go and why, without sending it; or why one went where it did."""

import argparse
import sys
import urllib.parse
from typing import Any

from gir.cli.client import AdminError, add_client_arguments, call, report, show_json

_EPILOG = """examples:
  gir explain --model llama --prompt-tokens 4000 --criticality critical
  gir explain --body request.json --tenant acme
  gir explain req-1f0c...        a decision the router made (see x-request-id)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A request id, or what a request would look like."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("request_id", nargs="?", help="id of a request this router has placed")
    parser.add_argument("--model", help="model the client asks for")
    parser.add_argument(
        "--body", metavar="FILE", help="file with a request body as a client would send it; - for stdin"
    )
    parser.add_argument("--path", default="/v1/chat/completions", help="path of the request (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="length of the prompt, when there is no body")
    parser.add_argument("--output-tokens", type=int, metavar="N", help="client's cap on output tokens")
    parser.add_argument("--tenant", default="default", help="tenant that asks (default: %(default)s)")
    parser.add_argument("--criticality", choices=("critical", "standard", "sheddable"))
    parser.add_argument("--session", metavar="KEY", help="session the request belongs to")
    parser.add_argument("--region", action="append", metavar="R", help="Region the credential allows; repeat for more")
    parser.add_argument("--cluster", metavar="C", help="pin to this cluster")
    parser.add_argument("--tried", action="append", default=[], metavar="C", help="cluster already tried; repeatable")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="header to match rules with"
    )
    parser.add_argument("--trusted", action="store_true", help="as a caller whose control headers count")
    parser.add_argument("--draw", type=float, metavar="D", help="decide with this draw in [0, 1) instead of a new one")
    add_client_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the decision; exit code 1 when nobody could take the request."""
    try:
        if arguments.request_id:
            answer = call(arguments, f"/admin/decisions/{urllib.parse.quote(arguments.request_id, safe='')}")
            decisions = answer["decisions"]
        else:
            answer = call(arguments, "/admin/explain", method="POST", body=_ask(arguments))
            decisions = [answer]
    except AdminError as error:
        return report(error, "explain")
    if arguments.json:
        show_json(answer)
    else:
        for number, decision in enumerate(decisions, start=1):
            if len(decisions) > 1:
                sys.stdout.write(f"{'' if number == 1 else chr(10)}attempt {number}\n")
            sys.stdout.write(decision["text"])
    return 0 if decisions[-1]["placement"]["ranked"] else 1


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    """The body of POST /admin/explain. Raises AdminError (exit code 2) for what cannot be read."""
    if not arguments.model and not arguments.body:
        raise AdminError("name a request id, or give --model or --body", 2)
    headers = {}
    for pair in arguments.header:
        name, equals, value = pair.partition("=")
        if not equals:
            raise AdminError(f"--header is '{pair}'; write it as NAME=VALUE", 2)
        headers[name] = value
    return {
        "model": arguments.model,
        "body": _read(arguments.body) if arguments.body else None,
        "path": arguments.path,
        "prompt_tokens": arguments.prompt_tokens,
        "output_tokens_max": arguments.output_tokens,
        "tenant": arguments.tenant,
        "criticality": arguments.criticality,
        "session": arguments.session,
        "regions": arguments.region,
        "cluster": arguments.cluster,
        "tried": arguments.tried,
        "headers": headers,
        "trusted": arguments.trusted,
        "draw": arguments.draw,
    }


def _read(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise AdminError(f"--body {path}: {error}", 2) from None
