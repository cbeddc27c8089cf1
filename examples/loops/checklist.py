#!/usr/bin/env python3
"""A loop without a model: runs the commands of its agent's settings one by one, and stops at the first that fails.

{"loop": "external", "loop_settings": {"program": "checklist", "commands": ["make", "make test"]}}

All it knows it is told by the events, so another harness goes on where this one stopped. See docs/loops.md.
"""
import json
import sys


def say(**line):
    print(json.dumps(line), flush=True)


commands, results = [], []
for text in sys.stdin:
    line = json.loads(text)
    if line["type"] == "hello":
        commands = line["agent"]["settings"].get("commands", [])
    elif line["type"] == "event" and line["event"]["type"] == "user.message":
        results = []  # every message begins the list anew
    elif line["type"] == "event" and line["event"]["type"] == "agent.tool_result":
        results.append(line["event"]["payload"])
    elif line["type"] == "step":
        if results and results[-1].get("is_error"):
            say(type="message", text=f"Stopped: `{commands[len(results) - 1]}` failed.")
        elif len(results) < len(commands):
            say(type="call", name="bash", input={"command": commands[len(results)]})
        else:
            say(type="message", text=f"All {len(commands)} commands ran.")
        say(type="end")
