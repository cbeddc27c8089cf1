/** How this program is started a second time, such as inside a hand's network namespace, whatever form it has. */
import { createRequire } from "node:module";

export interface OwnProgram {
  readonly file: string;
  readonly args: readonly string[];
}

/** The command that runs this program with `args`: Node with the script, or the executable that is both. */
export function ownProgram(args: readonly string[]): OwnProgram {
  const file = process.execPath;
  if (isExecutable()) return { file, args };
  return { file, args: [...process.execArgv, process.argv[1]!, ...args] };
}

/** Older releases of Node 20 do not have the module; they cannot have been built in either. */
function isExecutable(): boolean {
  try {
    return (createRequire(process.execPath)("node:sea") as { isSea(): boolean }).isSea();
  } catch {
    return false;
  }
}
