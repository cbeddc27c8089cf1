/** Files that hold a secret: readable by their owner alone, and there with all of their bytes or not at all. */
import { randomBytes } from "node:crypto";
import { link, mkdir, open, readFile, rename, stat, unlink } from "node:fs/promises";
import { dirname } from "node:path";

/** The file's text, or undefined when there is none. Throws an Error with one clear line when others may read it. */
export async function readPrivateFile(path: string): Promise<string | undefined> {
  try {
    const { mode } = await stat(path);
    if (process.platform !== "win32" && (mode & 0o077) !== 0) {
      throw new Error(`others may read ${path} (mode ${(mode & 0o777).toString(8)}); run: chmod 600 ${path}`);
    }
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** Makes the file with mode 0600; one that is there already stays as it is. Its folder is made with mode 0700. */
export async function createPrivateFile(path: string, content: string): Promise<void> {
  const draft = await writeDraft(path, content);
  try {
    await link(draft, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  } finally {
    await unlink(draft);
  }
}

/** Puts other content in the place of the file's, whole or not at all; mode 0600 as before. */
export async function replacePrivateFile(path: string, content: string): Promise<void> {
  await rename(await writeDraft(path, content), path);
}

async function writeDraft(path: string, content: string): Promise<string> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const draft = `${path}.${randomBytes(6).toString("hex")}`;
  const file = await open(draft, "wx", 0o600);
  try {
    await file.writeFile(content);
    await file.sync();
  } finally {
    await file.close();
  }
  return draft;
}
