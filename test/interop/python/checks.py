"""Checks of a running server, one by name: `checks.py NAME`. Each raises when the server is not as the contract says.

TENDON_ADDRESS is HOST:PORT, TENDON_API_KEY an admin's key, TENDON_STUBS the folder of the generated modules.
"""
import json
import os
import subprocess
import sys
import threading
import time
import uuid

import stubs  # first: it makes the others importable
import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc.health.v1 import health_pb2, health_pb2_grpc
from grpc.reflection.v1 import reflection_pb2, reflection_pb2_grpc
from tendon.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    agent_pb2,
    agent_service_pb2,
    agent_service_pb2_grpc,
    environment_pb2,
    environment_service_pb2,
    environment_service_pb2_grpc,
    event_pb2,
    hand_pb2,
    hand_service_pb2,
    hand_service_pb2_grpc,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)

ADDRESS = os.environ["TENDON_ADDRESS"]
CREDENTIAL = [("authorization", "Bearer " + os.environ["TENDON_API_KEY"])]
HERE = os.path.dirname(os.path.abspath(__file__))
MAX_SECONDS = 30

channel = grpc.insecure_channel(ADDRESS)
admin = admin_service_pb2_grpc.AdminServiceStub(channel)
agents = agent_service_pb2_grpc.AgentServiceStub(channel)
environments = environment_service_pb2_grpc.EnvironmentServiceStub(channel)
hands = hand_service_pb2_grpc.HandServiceStub(channel)
sessions = session_service_pb2_grpc.SessionServiceStub(channel)


def call(method, request, **options):
    return method(request, metadata=CREDENTIAL, **{"timeout": MAX_SECONDS, **options})


def fails(work):
    """The error that `work` ends with."""
    try:
        work()
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call did not fail")


def error_info(error):
    """The google.rpc.ErrorInfo in an error's trailers."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert status.code == error.code().value[0], (status, error.code())
    assert status.message == error.details(), (status, error.details())
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info), status
    return info


def create_agent():
    toolset = agent_pb2.Tool(hand_toolset=agent_pb2.HandToolset())
    spec = agent_pb2.AgentSpec(name="interop", tools=[toolset])
    return call(agents.CreateAgent, agent_service_pb2.CreateAgentRequest(request_id=uuid.uuid4().hex, spec=spec)).agent


def create_environment(driver=""):
    spec = environment_pb2.EnvironmentSpec(name=f"interop-{uuid.uuid4().hex}", driver=driver)
    request = environment_service_pb2.CreateEnvironmentRequest(request_id=uuid.uuid4().hex, spec=spec)
    return call(environments.CreateEnvironment, request).environment


def create_session(environment_id=""):
    request = session_service_pb2.CreateSessionRequest(
        request_id=uuid.uuid4().hex, agent_id=create_agent().id, environment_id=environment_id
    )
    return call(sessions.CreateSession, request).session


def user_message(text):
    payload = json.dumps({"content": [{"type": "text", "text": text}]})
    return event_pb2.EventInput(id=f"sevt_{uuid.uuid4().hex}", type="user.message", payload=payload)


def emit(session_id, *events):
    return call(sessions.EmitEvents, session_service_pb2.EmitEventsRequest(session_id=session_id, events=events))


def watch(session_id, **options):
    return call(sessions.WatchEvents, session_service_pb2.WatchEventsRequest(session_id=session_id), **options)


def run_to_idle(session_id, text):
    """Sends a message and returns the session's events up to the one that says it is idle again."""
    emit(session_id, user_message(text))
    events = []
    stream = watch(session_id)
    for message in stream:
        if message.WhichOneof("kind") == "event":
            events.append(message.event)
            if message.event.type == "session.status_idle":
                stream.cancel()
                return events
    raise AssertionError("the stream ended before the session was idle")


def texts(events, type):
    """The text blocks of the events of a type."""
    payloads = [json.loads(event.payload) for event in events if event.type == type]
    return [block["text"] for payload in payloads for block in payload["content"] if block["type"] == "text"]


def reflection():
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    Request = reflection_pb2.ServerReflectionRequest
    requests = [
        Request(list_services=""),
        Request(file_containing_symbol="tendon.v1.SessionService"),
        Request(file_containing_symbol="no.Such"),
    ]
    listed, described, unknown = stub.ServerReflectionInfo(iter(requests), timeout=MAX_SECONDS)
    names = {service.name for service in listed.list_services_response.service}
    wanted = {"Session", "Agent", "Environment", "Hand", "HandAgent", "Harness", "Proxy", "Admin"}
    assert names >= {f"tendon.v1.{name}Service" for name in wanted} | {"grpc.health.v1.Health"}, names
    assert len(described.file_descriptor_response.file_descriptor_proto) > 1, described
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], unknown


def health():
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for service in ("", "tendon.v1.SessionService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(request, timeout=MAX_SECONDS).status == serving
        stream = stub.Watch(request, timeout=MAX_SECONDS)
        assert next(stream).status == serving
        stream.cancel()
    error = fails(lambda: stub.Check(health_pb2.HealthCheckRequest(service="no.Such"), timeout=MAX_SECONDS))
    assert error.code() == grpc.StatusCode.NOT_FOUND, error


def session():
    session = create_session(create_environment().id)
    events = run_to_idle(session.id, "run: echo $((6 * 7)) from python")
    types = [event.type for event in events]
    assert [event.position for event in events] == list(range(1, len(events) + 1)), events
    assert types.count("agent.tool_use") == types.count("agent.tool_result") == 1, types
    assert any("42 from python" in text for text in texts(events, "agent.tool_result")), events
    assert any("42 from python" in text for text in texts(events, "agent.message")), events
    now = call(sessions.GetSession, session_service_pb2.GetSessionRequest(session_id=session.id)).session
    assert now.status == session_pb2.SESSION_STATUS_IDLE, now
    assert now.stop_reason == session_pb2.STOP_REASON_END_TURN, now


def retry():
    session = create_session()
    event = user_message("hello")
    first, second = emit(session.id, event), emit(session.id, event)
    assert first.receipts[0].position == second.receipts[0].position, (first, second)
    assert [first.receipts[0].duplicate, second.receipts[0].duplicate] == [False, True], (first, second)
    event.payload = json.dumps({"content": [{"type": "text", "text": "something else"}]})
    assert error_info(fails(lambda: emit(session.id, event))).reason == "EVENT_CONTENT_DIFFERS"


def deadline():
    stream = watch(create_session().id, timeout=0.5)
    started = time.monotonic()
    error = fails(lambda: list(stream))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
    assert time.monotonic() - started < 3, "the deadline was late"


def cancel():
    session = create_session()
    stream = watch(session.id)
    next(stream)
    threading.Timer(0.1, stream.cancel).start()
    error = fails(lambda: list(stream))
    assert error.code() == grpc.StatusCode.CANCELLED, error
    request = session_service_pb2.GetSessionRequest(session_id=session.id)
    assert call(sessions.GetSession, request).session.id == session.id


def trailers():
    request = session_service_pb2.GetSessionRequest(session_id="sesn_nothing")
    _, succeeded = sessions.GetSession.with_call(
        session_service_pb2.GetSessionRequest(session_id=create_session().id), metadata=CREDENTIAL
    )
    assert succeeded.code() == grpc.StatusCode.OK
    assert "grpc-status-details-bin" not in dict(succeeded.trailing_metadata())
    error = fails(lambda: call(sessions.GetSession, request))
    assert error.code() == grpc.StatusCode.NOT_FOUND, error
    assert isinstance(dict(error.trailing_metadata())["grpc-status-details-bin"], bytes)
    stream = watch("sesn_nothing")
    assert fails(lambda: list(stream)).code() == grpc.StatusCode.NOT_FOUND
    assert isinstance(dict(stream.trailing_metadata())["grpc-status-details-bin"], bytes)


def error_details():
    bad_event = event_pb2.EventInput(type="Not A Type")
    info = error_info(fails(lambda: emit("sesn_nothing", user_message("hello"), bad_event)))
    assert (info.domain, info.reason) == ("tendon.dev", "INVALID_FIELD"), info
    assert info.metadata["field"] == "events[1].type", info
    info = error_info(fails(lambda: emit("sesn_nothing", user_message("hello"))))
    assert info.reason == "NOT_FOUND", info
    reserved = event_pb2.EventInput(type="session.status_idle", payload="{}")
    info = error_info(fails(lambda: emit(create_session().id, reserved)))
    assert info.reason == "EVENT_TYPE_NOT_ALLOWED", info
    request = session_service_pb2.GetSessionRequest(session_id="sesn_nothing")
    for metadata in ([], [("authorization", "Bearer nobody-has-this-key")]):
        error = fails(lambda: sessions.GetSession(request, metadata=metadata, timeout=MAX_SECONDS))
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error
        assert error_info(error).reason == "UNAUTHENTICATED", error


def large_message():
    session = create_session()
    states = []
    channel.subscribe(states.append)
    error = fails(lambda: emit(session.id, user_message("x" * (5 * 1024 * 1024))))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    assert emit(session.id, user_message("x" * (1024 * 1024))).head >= 1
    broken = {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}
    assert not broken & set(states), states


def paging():
    wanted = [create_session().id for _ in range(5)]
    seen, token = [], ""
    while len(seen) < 5:
        request = session_service_pb2.ListSessionsRequest(page_size=2, page_token=token)
        page = call(sessions.ListSessions, request)
        assert len(page.sessions) == 2 or page.next_page_token == "", page
        seen += [session.id for session in page.sessions]
        token = page.next_page_token
    assert seen[:5] == wanted[::-1], (seen, wanted)
    request = session_service_pb2.ListSessionsRequest(page_token="nonsense")
    assert error_info(fails(lambda: call(sessions.ListSessions, request))).reason == "INVALID_PAGE_TOKEN"


class RunningHandAgent:
    """hand_agent.py as its own process, online while the `with` block runs."""

    def __enter__(self):
        secret = call(admin.CreateJoinToken, admin_service_pb2.CreateJoinTokenRequest()).secret
        # Folders of its hands go where the modules are, and with them.
        environment = {**os.environ, "PYTHONPATH": stubs.STUBS, "TMPDIR": stubs.STUBS}
        program = [sys.executable, os.path.join(HERE, "hand_agent.py"), ADDRESS, secret]
        self.process = subprocess.Popen(program, env=environment)
        return create_environment(driver="python")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def hand_agent_execute():
    with RunningHandAgent() as environment:
        request = hand_service_pb2.ProvisionRequest(request_id=uuid.uuid4().hex, environment_id=environment.id)
        hand = call(hands.Provision, request).hand
        assert (hand.state, hand.driver) == (hand_pb2.HAND_STATE_READY, "python"), hand
        command = "for i in 1 2 3; do echo $i; sleep 0.1; done; exit 7"
        request = hand_service_pb2.ExecuteRequest(
            execution_id=uuid.uuid4().hex, hand_id=hand.id, name="bash", input=json.dumps({"command": command})
        )
        for attached in (False, True):  # the second time the answer is what was stored
            bound, *outputs, end = call(hands.Execute, request)
            assert (bound.bound.hand_id, bound.bound.attached) == (hand.id, attached), bound
            if not attached:
                assert len(outputs) > 1, "the output did not stream"
                assert b"".join(message.output.data for message in outputs) == b"1\n2\n3\n", outputs
            assert end.result.outcome == hand_pb2.EXECUTION_OUTCOME_COMPLETED, end
            assert (end.result.is_error, end.result.exit.code, end.result.output_bytes) == (True, 7, 6), end
            assert json.loads(end.result.content) == [{"type": "text", "text": "1\n2\n3\n"}], end
        released = call(hands.ReleaseHand, hand_service_pb2.ReleaseHandRequest(hand_id=hand.id)).hand
        assert released.state == hand_pb2.HAND_STATE_RELEASED, released


def hand_agent_cancel():
    with RunningHandAgent() as environment:
        request = hand_service_pb2.ProvisionRequest(request_id=uuid.uuid4().hex, environment_id=environment.id)
        hand = call(hands.Provision, request).hand
        command = json.dumps({"command": "echo started; sleep 600"})
        request = hand_service_pb2.ExecuteRequest(
            execution_id=uuid.uuid4().hex, hand_id=hand.id, name="bash", input=command
        )
        stream = call(hands.Execute, request)
        next(message for message in stream if message.WhichOneof("kind") == "output")
        cancel = hand_service_pb2.CancelExecutionRequest(execution_id=request.execution_id)
        assert not call(hands.CancelExecution, cancel).already_ended
        result = [message.result for message in stream][-1]
        assert result.is_error and result.outcome == hand_pb2.EXECUTION_OUTCOME_CANCELLED, result
        assert result.output_bytes == len("started\n"), result


def hand_agent_time_limit():
    with RunningHandAgent() as environment:
        request = hand_service_pb2.ProvisionRequest(request_id=uuid.uuid4().hex, environment_id=environment.id)
        hand = call(hands.Provision, request).hand
        command = json.dumps({"command": "echo started; sleep 600 & sleep 600"})
        request = hand_service_pb2.ExecuteRequest(
            execution_id=uuid.uuid4().hex, hand_id=hand.id, name="bash", input=command, timeout_ms=500
        )
        result = [message.result for message in call(hands.Execute, request)][-1]
        assert result.is_error and result.outcome == hand_pb2.EXECUTION_OUTCOME_TIMED_OUT, result
        assert "started" in result.content, result


def hand_agent_session():
    with RunningHandAgent() as environment:
        session = create_session(environment.id)
        events = run_to_idle(session.id, "run: pwd; echo $((6 * 7))")
        results = texts(events, "agent.tool_result")
        assert len(results) == 1 and results[0].endswith("\n42\n") and "/hand-" in results[0], results
        provisioned = [json.loads(event.payload) for event in events if event.type == "hand.provisioned"]
        assert len(provisioned) == 1, events


if __name__ == "__main__":
    with channel:
        globals()[sys.argv[1]]()
