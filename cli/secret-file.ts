/** `--out FILE`: a secret goes to a file that its owner alone can read, and is printed nowhere. */
import { closeSync, fsyncSync, openSync, unlinkSync, writeFileSync } from "node:fs";
import { StartupError } from "../kit/program.ts";
import { EXIT_USAGE } from "./command.ts";

/**
 * Runs `make` and writes the secret that it returns to the file, which is made with mode 0600 before: a secret that is shown
 * once must not be made when there is no place for it. Throws a StartupError when the file exists or cannot be made.
 */
export async function withSecretFile<T extends { secret: string }>(
  path: string,
  make: () => Promise<T>,
): Promise<T> {
  const file = openNew(path);
  try {
    const made = await make();
    writeFileSync(file, `${made.secret}\n`);
    fsyncSync(file);
    made.secret = "";
    return made;
  } catch (error) {
    unlinkSync(path);
    throw error;
  } finally {
    closeSync(file);
  }
}

function openNew(path: string): number {
  try {
    return openSync(path, "wx", 0o600);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const why = code === "EEXIST" ? "it is there already" : message;
    throw new StartupError(`cannot make ${path}: ${why}`, EXIT_USAGE);
  }
}
