// `npm run docs:settings`: writes docs/settings.md from the programs' tables.
import { writeDocument } from "../test/contract/settings-document.ts";

await writeDocument();
