/** A session with a call that runs at a scripted hand agent until the test says how it ends. */
import { eventually } from "./eventually.ts";
import { collectExecution, gate } from "./execution-stream.ts";
import type { HandRig } from "./hand-rig.ts";
import { textResult } from "./scripted-hand-agent.ts";

type Result = ReturnType<typeof textResult>;

/** What it has written by then is `write`; it ends with what `open` is given. */
export async function runningCall(rig: HandRig, write = "") {
  const { open, opened } = gate<Result>();
  const agent = await rig.agent({
    run: (call) => {
      if (call.input.wait !== true) return textResult("quick");
      call.write(write);
      return opened;
    },
  });
  await agent.connect();
  const session = await rig.session();
  const call = await session.toolUse("bash", { wait: true });
  const ran = collectExecution(rig.harness.execute(call));
  ran.catch(() => {});
  await eventually(() => agent.runs.size === 1);
  return { agent, session, call, ran, open };
}
