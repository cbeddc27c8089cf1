/**
 * Records sessions for replays: `node --import tsx test/golden/record.ts rich|long|outcome|auto`. What is recorded stands for all logs
 * that there are: record anew only when a change of the requests is wanted, and say why.
 */
import { writeFile } from "node:fs/promises";
import { toJsonString } from "@bufbuild/protobuf";
import { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type Gate, gate, type RecordedRequest, type Script } from "../kit/fake-messages-api.ts";
import { JUDGING_MODEL, type Rig, startRig } from "../kit/harness-rig.ts";
import {
  autoScript,
  JUDGED_TOOLS,
  outcomeScript,
  playAutoSession,
  playOutcomeSession,
} from "../kit/judged-sessions.ts";
import { LONG_TOOLS, longScript, playLongSession } from "../kit/long-session.ts";
import { wasGraders } from "../kit/outcome-session.ts";
import { playRichSession, RICH_TOOLS, richScript } from "../kit/rich-session.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

interface Play {
  readonly tools: Record<string, ScriptedTool>;
  readonly script: (hold: Gate) => Script;
  readonly play: (rig: Rig, hold: Gate) => Promise<ScriptedSession>;
  /** Whether a request was for a verdict; these have a file of their own. */
  readonly isJudges?: (request: RecordedRequest) => boolean;
}

const PLAYS: Record<string, Play> = {
  rich: { tools: RICH_TOOLS, script: (hold) => richScript({ hold }), play: playRichSession },
  long: { tools: LONG_TOOLS, script: longScript, play: playLongSession },
  outcome: {
    tools: JUDGED_TOOLS,
    script: outcomeScript,
    play: playOutcomeSession,
    isJudges: wasGraders,
  },
  auto: {
    tools: JUDGED_TOOLS,
    script: () => autoScript,
    play: playAutoSession,
    isJudges: ({ json }) => json?.model === JUDGING_MODEL,
  },
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
const { isJudges = () => false } = found;
const bodies = (requests: readonly RecordedRequest[]) => requests.map(({ body }) => body.toString());
await write("requests.ndjson", bodies(rig.api.requests.filter((request) => !isJudges(request))));
const judges = bodies(rig.api.requests.filter(isJudges));
if (judges.length > 0) await write("verdicts.ndjson", judges);
await rig.stop();
