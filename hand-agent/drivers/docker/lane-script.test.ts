import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { FILE_ENDS, LANE_SCRIPT } from "./lane-script.ts";

const FLIP =
  "mkdir d e g; echo mine >d/f; ln -s /etc l; echo ready; while :; do mv -T d e; mv -T l d; mv -T d l; mv -T e d; mv -T d/f g/f; mv -T g/f d/f; done";
const TRIES = 200;

/** The functions of a lane in this machine's own shell, without its loop. */
const functions = (directory: string) =>
  LANE_SCRIPT.slice(0, LANE_SCRIPT.indexOf("printf '\\001hello"))
    .replace("exec 3<&0\n", "")
    .replace("TENDON_W=$1 TENDON_O=$2", `TENDON_W=${directory} TENDON_O=/nowhere`);

test.each([
  ["reading", `do_read "$TENDON_W/d/f" 1`],
  ["writing", `printf '2\\nhi0\\n' | do_write "$TENDON_W/d/f" 600 .t`],
])(
  "%s a path that moves ends as one of the known ends, and never as another kind of file",
  async (_, call) => {
    const directory = mkdtempSync(join(tmpdir(), "tendon-lane-"));
    const flipper = spawn("/bin/bash", ["-c", FLIP], { cwd: directory, stdio: ["ignore", "pipe", "ignore"] });
    onTestFinished(() => {
      rmSync(directory, { recursive: true, force: true });
    });
    const isOver = new Promise((resolve) => flipper.once("close", resolve));
    await new Promise((resolve) => flipper.stdout.once("data", resolve));
    const script = `${functions(directory)}\ni=0; while [ $i -lt ${TRIES} ]; do i=$((i+1)); ( ${call} ) >/dev/null; echo "end $?"; done`;
    const { stdout } = spawnSync("/bin/sh", ["-c", script], { encoding: "utf8", timeout: 60_000 });
    flipper.kill("SIGKILL");
    await isOver;
    const ends = stdout.match(/(?<=^end )\d+$/gm)?.map(Number) ?? [];
    expect(ends).toHaveLength(TRIES);
    expect(ends).toContain(0);
    const allowed = new Set(["done", "not_found", "outside", "not_a_directory", "too_many_links"]);
    const names = ends.map((end) => (end === 0 ? "done" : (FILE_ENDS[end] ?? `status ${end}`)));
    expect(names.filter((name) => !allowed.has(name))).toEqual([]);
  },
);
