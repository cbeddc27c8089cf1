/**
 * Records a session in which everything happens, for replays: `node --import tsx test/golden/record.ts`. What is recorded
 * stands for all logs that there are: record anew only when a change of the requests is wanted, and say why.
 */
import { writeFile } from "node:fs/promises";
import { toJsonString } from "@bufbuild/protobuf";
import { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { gate } from "../kit/fake-messages-api.ts";
import { startRig } from "../kit/harness-rig.ts";
import { playRichSession, RICH_TOOLS, richScript } from "../kit/rich-session.ts";

const hold = gate();
const rig = await startRig({ server: { tools: RICH_TOOLS }, model: { script: richScript({ hold }) } });
const session = await playRichSession(rig, hold);
const write = (name: string, lines: readonly string[]) =>
  writeFile(new URL(`./claude/rich.${name}`, import.meta.url), `${lines.join("\n")}\n`);
await write("agent.json", [toJsonString(AgentSpecSchema, session.spec, { prettySpaces: 2 })]);
await write(
  "log.ndjson",
  session.events.map(({ id, position, type, payload, internal }) =>
    JSON.stringify({ id, position: Number(position), type, payload, internal }),
  ),
);
await write(
  "requests.ndjson",
  rig.api.requests.map(({ body }) => body.toString()),
);
await rig.stop();
