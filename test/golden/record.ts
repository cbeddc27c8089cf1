/**
 * Records sessions for replays: `node --import tsx test/golden/record.ts rich|long`. What is recorded stands for all logs
 * that there are: record anew only when a change of the requests is wanted, and say why.
 */
import { writeFile } from "node:fs/promises";
import { toJsonString } from "@bufbuild/protobuf";
import { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type Gate, gate, type Script } from "../kit/fake-messages-api.ts";
import { type Rig, startRig } from "../kit/harness-rig.ts";
import { LONG_TOOLS, longScript, playLongSession } from "../kit/long-session.ts";
import { playRichSession, RICH_TOOLS, richScript } from "../kit/rich-session.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

interface Play {
  readonly tools: Record<string, ScriptedTool>;
  readonly script: (hold: Gate) => Script;
  readonly play: (rig: Rig, hold: Gate) => Promise<ScriptedSession>;
}

const PLAYS: Record<string, Play> = {
  rich: { tools: RICH_TOOLS, script: (hold) => richScript({ hold }), play: playRichSession },
  long: { tools: LONG_TOOLS, script: longScript, play: playLongSession },
};

const name = process.argv[2] ?? "";
const found = PLAYS[name];
if (found === undefined) throw new Error(`which one? ${Object.keys(PLAYS).join(", ")}`);
const hold = gate();
const rig = await startRig({ server: { tools: found.tools }, model: { script: found.script(hold) } });
const session = await found.play(rig, hold);
const write = (part: string, lines: readonly string[]) =>
  writeFile(new URL(`./claude/${name}.${part}`, import.meta.url), `${lines.join("\n")}\n`);
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
