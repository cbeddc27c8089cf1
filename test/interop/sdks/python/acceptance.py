"""The short acceptance of the HTTP API, by the official SDK for Python."""

import os
from importlib.metadata import version

from anthropic import Anthropic, BadRequestError, NotFoundError


def client() -> Anthropic:
    return Anthropic(base_url=os.environ["TENDON_URL"], api_key=os.environ["TENDON_API_KEY"], max_retries=0)


def refused(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}")


def agents_and_environments(c: Anthropic):
    tool = {
        "type": "custom",
        "name": "ask_user",
        "description": "Asks.",
        "input_schema": {"type": "object", "properties": {}},
    }
    agent = c.beta.agents.create(name="python", model="claude-test", tools=[tool])
    agent = c.beta.agents.update(agent.id, version=agent.version, description="changed")
    assert agent.version == 2 and agent.description == "changed", agent
    assert [one.version for one in c.beta.agents.versions.list(agent.id)] == [2, 1]
    environment = c.beta.environments.create(name=f"python {agent.id}", config={"type": "cloud"})
    assert environment.id in [one.id for one in c.beta.environments.list(limit=1)]
    return agent, environment


def follow(c: Anthropic, session_id: str, events):
    """Sends events with the stream already open, and gives what it shows until the turn is over."""
    seen = []
    with c.beta.sessions.events.stream(session_id) as stream:
        c.beta.sessions.events.send(session_id, events=events)
        for event in stream:
            seen.append(event)
            if event.type == "agent.custom_tool_use":
                answer = {
                    "type": "user.custom_tool_result",
                    "custom_tool_use_id": event.id,
                    "content": [{"type": "text", "text": "the user's answer"}],
                }
                c.beta.sessions.events.send(session_id, events=[answer])
            if event.type == "session.status_idle" and event.stop_reason.type == "end_turn":
                return seen


def sessions(c: Anthropic, agent, environment):
    session = c.beta.sessions.create(agent=agent.id, environment_id=environment.id)
    assert session.status == "idle", session
    message = {"type": "user.message", "content": [{"type": "text", "text": "ask the user"}]}
    seen = follow(c, session.id, [message])
    said = [event for event in seen if event.type == "agent.message"]
    assert "the user's answer" in said[-1].content[0].text, said
    history = [event.id for event in c.beta.sessions.events.list(session.id, limit=2)]
    assert history == list(dict.fromkeys(event.id for event in seen)), (history, seen)
    refused(BadRequestError, lambda: c.beta.sessions.events.send(session.id, events=[]))
    assert c.beta.sessions.archive(session.id).status == "terminated"
    assert c.beta.sessions.delete(session.id).type == "session_deleted"
    refused(NotFoundError, lambda: c.beta.sessions.retrieve(session.id))


def vaults(c: Anthropic):
    vault = c.beta.vaults.create(display_name="python")
    auth = {"type": "static_bearer", "token": "secret-of-python", "mcp_server_url": "https://mcp.example.com/mcp"}
    made = c.beta.vaults.credentials.create(vault.id, auth=auth)
    assert "secret-of-python" not in made.to_json()
    assert [one.id for one in c.beta.vaults.credentials.list(vault.id)] == [made.id]
    assert c.beta.vaults.delete(vault.id).type == "vault_deleted"


def files_and_skills(c: Anthropic):
    file = c.beta.files.upload(file=("hello.txt", b"hello, file", "text/plain"))
    assert (file.filename, file.size_bytes) == ("hello.txt", 11), file
    assert c.beta.files.download(file.id).read() == b"hello, file"
    assert file.id in [one.id for one in c.beta.files.list(limit=1)]
    assert c.beta.files.delete(file.id).type == "file_deleted"
    manifest = b"---\nname: greeting-python\ndescription: Greets.\n---\nSay hello.\n"
    skill = c.beta.skills.create(files=[("greeting-python/SKILL.md", manifest, "text/markdown")])
    latest = c.beta.skills.versions.retrieve("latest", skill_id=skill.id)
    assert latest.name == "greeting-python", latest
    assert c.beta.skills.versions.download(latest.id, skill_id=skill.id).read()[:2] == b"PK"
    assert c.beta.skills.delete(skill.id).type == "skill_deleted"


def memory(c: Anthropic):
    store = c.beta.memory_stores.create(name="python")
    made = c.beta.memory_stores.memories.create(store.id, path="/a/one.md", content="first")
    read = c.beta.memory_stores.memories.retrieve(made.id, memory_store_id=store.id)
    assert read.content == "first", read
    assert [one.id for one in c.beta.memory_stores.memories.list(store.id)] == [made.id]
    assert c.beta.memory_stores.delete(store.id).type == "memory_store_deleted"


def main():
    c = client()
    sessions(c, *agents_and_environments(c))
    vaults(c)
    files_and_skills(c)
    memory(c)
    print(f"accepted by anthropic {version('anthropic')}")


main()
