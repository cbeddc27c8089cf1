/** For hands whose files are the work of a part of their own: they pass on what they are asked. */
import type { FileStat, Hand, WalkEntry, WalkOptions } from "./driver.ts";

export type HandFiles = Required<
  Pick<
    Hand,
    | "stat"
    | "readFile"
    | "writeFile"
    | "mkdir"
    | "rename"
    | "remove"
    | "readLink"
    | "makeLink"
    | "setMode"
    | "walk"
  >
>;

export abstract class ForwardedFiles implements HandFiles {
  protected abstract readonly files: HandFiles;

  stat(path: string): Promise<FileStat> {
    return this.files.stat(path);
  }
  readFile(path: string, options?: { offset?: number; signal?: AbortSignal }): AsyncIterable<Uint8Array> {
    return this.files.readFile(path, options);
  }
  writeFile(
    path: string,
    content: Uint8Array | AsyncIterable<Uint8Array>,
    options?: { mode?: number; signal?: AbortSignal },
  ): Promise<{ bytes: number }> {
    return this.files.writeFile(path, content, options);
  }
  mkdir(path: string): Promise<void> {
    return this.files.mkdir(path);
  }
  rename(from: string, to: string): Promise<void> {
    return this.files.rename(from, to);
  }
  remove(path: string): Promise<void> {
    return this.files.remove(path);
  }
  readLink(path: string): Promise<string> {
    return this.files.readLink(path);
  }
  makeLink(path: string, target: string): Promise<void> {
    return this.files.makeLink(path, target);
  }
  setMode(path: string, mode: number): Promise<void> {
    return this.files.setMode(path, mode);
  }
  walk(path: string, options?: WalkOptions): AsyncIterable<WalkEntry> {
    return this.files.walk(path, options);
  }
}
