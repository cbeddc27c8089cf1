/** `npm run bench -- NAME [--json] [--scale N]`, or `--list`. Exit code 0 whether or not aims are met: figures are for reading. */
import { parseArgs } from "node:util";
import { agents } from "./agents.ts";
import { append } from "./append.ts";
import { brains } from "./brains.ts";
import { cache } from "./cache.ts";
import { execute } from "./execute.ts";
import { flood } from "./flood.ts";
import type { Bench, BenchContext } from "./frame/bench.ts";
import { thisMachine } from "./frame/machine.ts";
import { reportJson, reportTable } from "./frame/report.ts";
import { history } from "./history.ts";
import { http } from "./http.ts";
import { mcp } from "./mcp.ts";
import { provision } from "./provision.ts";
import { tail } from "./tail.ts";
import { ttft } from "./ttft.ts";
import { wake } from "./wake.ts";

const BENCHES: readonly Bench[] = [
  agents,
  append,
  brains,
  cache,
  execute,
  flood,
  history,
  http,
  mcp,
  provision,
  tail,
  ttft,
  wake,
];

async function runBench(bench: Bench, scale: number) {
  const undos: (() => Promise<void> | void)[] = [];
  const context: BenchContext = {
    scale,
    say: (line) => process.stderr.write(`${line}\n`),
    defer: (undo) => void undos.push(undo),
  };
  try {
    return await bench.run(context);
  } finally {
    for (let undo = undos.pop(); undo; undo = undos.pop()) await undo();
  }
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      json: { type: "boolean" },
      list: { type: "boolean" },
      scale: { type: "string", default: "1" },
    },
  });
  if (values.list) {
    for (const { name, describe } of BENCHES) console.log(`${name.padEnd(12)} ${describe}`);
    return 0;
  }
  const bench = BENCHES.find(({ name }) => name === positionals[0]);
  const scale = Number(values.scale);
  if (bench === undefined || !(scale > 0)) {
    console.error(
      `usage: npm run bench -- ${BENCHES.map(({ name }) => name).join("|")} [--json] [--scale N]   or --list`,
    );
    return 2;
  }
  const figures = await runBench(bench, scale);
  const report = values.json ? reportJson : reportTable;
  console.log(report(bench, thisMachine(), figures));
  return 0;
}

process.exitCode = await main();
