"""`gir drain CLUSTER`, `gir maintenance CLUSTER` and `gir undrain CLUSTER`."""

import argparse
import sys
import urllib.parse

from gir.cli.client import AdminError, add_client_arguments, call, report, show_json, warn_of_reach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One cluster id, and where the router is."""
    parser.add_argument("cluster", help="id of the cluster")
    add_client_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Change the cluster's intent; prints its row."""
    path = f"/admin/clusters/{urllib.parse.quote(arguments.cluster, safe='')}/{arguments.command}"
    try:
        answer = call(arguments, path, method="POST", body={})
    except AdminError as error:
        return report(error, arguments.command)
    warn_of_reach(answer, arguments.command)
    if arguments.json:
        show_json(answer)
    elif answer["status"] == "unheard":
        sys.stdout.write(f"{arguments.cluster}: noted for when it reports; this router has not heard of it yet\n")
    else:
        sys.stdout.write(f"{arguments.cluster}: {answer['intent']}, status {answer['status']}\n")
    return 0
