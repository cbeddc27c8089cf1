// `npm start`: sets up what is missing, then becomes the program `tendon start`.
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { root, setUp } from "./set-up.mjs";

setUp();
process.argv = [process.execPath, join(root, "dist/tendon.mjs"), "start", ...process.argv.slice(2)];
await import(pathToFileURL(process.argv[1]).href);
