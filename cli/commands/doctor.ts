/** `tendon doctor`: what works, what does not, and what to do about it. */
import type { Command } from "commander";
import { onAction } from "../command.ts";
import { type Check, runChecks, type Verdict } from "../doctor/checks.ts";
import { printable } from "../table.ts";

const SIGNS: Record<Verdict, string> = { ok: "ok  ", warn: "warn", fail: "FAIL" };
const NAME_WIDTH = 10;

export function addDoctorCommand(program: Command): void {
  const command = program
    .command("doctor")
    .description(
      "look at Node, data directory, server, database, model, hands, isolation and proxy; ends with 1 when something fails",
    );
  onAction(command, async ({ api, output }) => {
    const checks = await runChecks(api);
    const isWell = checks.every(({ verdict }) => verdict !== "fail");
    output.value({ ok: isWell, checks }, () => checks.map(checkText).join("\n"));
    return isWell ? 0 : 1;
  });
}

function checkText({ name, verdict, detail, advice }: Check): string {
  const indent = " ".repeat(SIGNS.ok.length + NAME_WIDTH + 2);
  const more = advice === undefined ? "" : `\n${indent}→ ${advice}`;
  return `${SIGNS[verdict]} ${name.padEnd(NAME_WIDTH)} ${printable(detail).replaceAll("\n", `\n${indent}`)}${more}`;
}
