/** Run as another user by the driver's tests: what hands of an agent without root can see. Prints one JSON object. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ISOLATION_MODES } from "../../hand-agent/drivers/process/isolation.ts";
import { ProcessDriver } from "../../hand-agent/drivers/process/process-driver.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";

const [dataDir = "", canary = ""] = process.argv.slice(2);
writeFileSync(join(dataDir, "admin.key"), canary, { mode: 0o600 });
const report: Record<string, unknown> = {};
for (const isolation of ISOLATION_MODES) {
  const driver = new ProcessDriver({
    dataDir,
    clock: systemClock,
    log: createLogger("check", "silent"),
    isolation,
    tools: [],
  });
  const probe = await driver.probe();
  if (!probe.available) continue;
  const hand = await driver.provision({ handId: `hand_${isolation}` });
  const call = toolCaller(hand);
  const look = `cat /proc/[0-9]*/environ ${dataDir}/admin.key 2>/dev/null | tr '\\0' '\\n' | grep "$(printf '%s' ${canary.slice(0, -3)})"; { : >/etc/x; } 2>/dev/null && echo wrote; true`;
  const seen = textOf(await call.bash(look)).replaceAll(/.*TENDON_CALL.*/g, "");
  await call.bash("setsid sleep 1000 & sleep 1000", { callId: "killed", input: { timeout_ms: 100 } });
  await call("write", { file_path: "f", content: "hello" });
  report[isolation] = {
    uid: textOf(await call.bash("id -u")),
    seen,
    killed: await hand.callProcesses("killed"),
    file: textOf(await call.bash("cat f")),
  };
  await hand.destroy();
}
process.stdout.write(JSON.stringify(report));
