"""A hand agent in Python: it dials the server, offers one kind of hand, and runs commands in it.

    hand_agent.py HOST:PORT JOIN_TOKEN

Needs grpcio, cryptography, PyJWT and the modules that protoc makes from proto/. It shows the protocol, not a product:
what it leaves out is a journal on disk (so a call that was running when it died ends as "unknown") and dialling again.
"""
import json, os, queue, shutil, signal, subprocess, sys, tempfile, threading, time, uuid

import grpc, jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tendon.v1 import hand_agent_service_pb2 as pb, hand_pb2 as hands
from tendon.v1.hand_agent_service_pb2_grpc import HandAgentServiceStub

INPUT = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = hands.ToolDescription(name="bash", description="Runs a shell command.", input_schema=json.dumps(INPUT))
DRIVER = hands.DriverDescription(name="python", available=True, detail="plain processes", tools=[BASH])


class HandAgent:
    def __init__(self, address, join_token):
        """Joins: the server learns the public key, and from then on believes what the private key signs."""
        self.stub = HandAgentServiceStub(grpc.insecure_channel(address))
        self.key = Ed25519PrivateKey.generate()
        public_key = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.identity = self.stub.Enroll(pb.EnrollRequest(join_token=join_token, public_key=public_key, name="python"))
        self.journal_id, self.outbox = uuid.uuid4().hex, queue.Queue()
        self.folders, self.processes = {}, {}  # by hand id, by execution key

    def credential(self):
        now = int(time.time())
        claims = {"sub": self.identity.hand_agent_id, "aud": "tendon", "iat": now, "exp": now + 60}
        token = jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "1"})
        return [("authorization", f"Bearer {token}")]

    def run(self):
        """Holds the connection: greets, then does what the server says, in the method of the message's name."""
        installation = self.identity.installation_id
        self.say(greeting=pb.HandAgentGreeting(protocol_version=1, build="python", installation_id=installation,
                                               journal_id=self.journal_id, drivers=[DRIVER], capacity_hands=4))
        for message in self.stub.Connect(iter(self.outbox.get, None), metadata=self.credential()):
            kind = message.WhichOneof("kind")
            getattr(self, kind, lambda _: None)(getattr(message, kind))

    def say(self, **kind):
        self.outbox.put(pb.ConnectRequest(**kind))

    def heartbeat(self, beat):
        self.say(heartbeat=beat)  # the server's rhythm is good enough for both directions

    def provision(self, command):
        if command.hand_id not in self.folders:
            self.folders[command.hand_id] = tempfile.mkdtemp(prefix="hand-")
        self.done(command, hands.HAND_STATE_READY)

    def release(self, command):
        shutil.rmtree(self.folders.pop(command.hand_id, ""), ignore_errors=True)
        self.done(command, hands.HAND_STATE_RELEASED)

    def done(self, command, state):
        report = pb.HandReport(hand_id=command.hand_id, state=state, driver="python")
        self.say(command_result=pb.CommandResult(command_id=command.command_id, hand=report))

    def start_execution(self, call):
        if call.execution_key not in self.processes:  # at most once, however often it is asked for
            self.processes[call.execution_key] = process = subprocess.Popen(
                ["bash", "-c", json.loads(call.input)["command"]], cwd=self.folders[call.hand_id],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
            process.outcome = hands.EXECUTION_OUTCOME_COMPLETED
            threading.Thread(target=self.stream, args=(call, process), daemon=True).start()

    def stop_execution(self, call, outcome=hands.EXECUTION_OUTCOME_CANCELLED):
        process = self.processes.get(call.execution_key)
        if process and process.poll() is None:
            process.outcome = outcome
            os.killpg(process.pid, signal.SIGKILL)

    def stream(self, call, process):
        """A stream for each call: where the server wants output from, the output, the result, and that it is stored."""
        outbox, output = queue.Queue(), b""
        say = lambda **kind: outbox.put(pb.StreamExecutionRequest(**kind))
        say(open=pb.ExecutionOpen(execution_key=call.execution_key, journal_id=self.journal_id))
        answers = self.stub.StreamExecution(iter(outbox.get, None), metadata=self.credential())
        next(answers)  # `resume`: from the first byte, since this agent never comes back to a call
        timer = threading.Timer(call.timeout_ms / 1000, self.stop_execution, [call, hands.EXECUTION_OUTCOME_TIMED_OUT])
        timer.start()
        for data in iter(lambda: process.stdout.read1(65536), b""):
            say(output=pb.ExecutionChunk(offset=len(output), data=data))
            output += data
        code = process.wait()
        timer.cancel()
        text = output.decode(errors="replace") or "(no output)"
        say(result=hands.ExecutionResult(is_error=code != 0, outcome=process.outcome, output_bytes=len(output),
                                         content=json.dumps([{"type": "text", "text": text}]),
                                         exit=hands.ProcessExit(code=max(code, -1))))
        for _ in answers:  # `stored`, and the server ends the stream
            outbox.put(None)


if __name__ == "__main__":
    HandAgent(*sys.argv[1:]).run()
