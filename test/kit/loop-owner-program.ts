/** Starts one program as loops do, says that it runs, and goes on until it is killed. Its arguments are the program's. */
import { LoopProcess } from "../../harness/loops/loop-process.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";

const program = { name: "test", argv: process.argv.slice(2), environment: { PATH: process.env.PATH ?? "" } };
const child = LoopProcess.start(program, systemClock, createLogger("test", "silent"));
child.stdout.once("data", () => process.stdout.write(`${child.scratch}\n`));
