/** What a database is made of, as text that can be compared: tables, columns, constraints, indexes, functions, triggers. */
import type { Queryable } from "../../server/store/postgres/pool.ts";

const OURS = "n.nspname = 'public'";

const QUERIES: readonly string[] = [
  `select format('table %s %s %s', c.relname, c.relpersistence, c.reloptions) from pg_class c
     join pg_namespace n on n.oid = c.relnamespace where ${OURS} and c.relkind in ('r', 'p')`,
  `select format('column %s.%s %s %s%s default %s storage %s', c.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod),
       case when a.attnotnull then ' not null' else '' end, pg_get_expr(d.adbin, d.adrelid), a.attstorage)
     from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
     left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
     where ${OURS} and c.relkind in ('r', 'p', 'S', 'v') and a.attnum > 0 and not a.attisdropped`,
  `select format('constraint %s.%s %s', conrelid::regclass, conname, pg_get_constraintdef(k.oid)) from pg_constraint k
     join pg_namespace n on n.oid = k.connamespace where ${OURS}`,
  `select format('index %s', pg_get_indexdef(i.indexrelid)) from pg_index i join pg_class c on c.oid = i.indexrelid
     join pg_namespace n on n.oid = c.relnamespace where ${OURS}`,
  `select format('function %s', pg_get_functiondef(p.oid)) from pg_proc p
     join pg_namespace n on n.oid = p.pronamespace where ${OURS} and p.prokind in ('f', 'p')`,
  `select format('trigger %s', pg_get_triggerdef(t.oid)) from pg_trigger t join pg_class c on c.oid = t.tgrelid
     join pg_namespace n on n.oid = c.relnamespace where ${OURS} and not t.tgisinternal`,
];

/** One line, or definition, for each thing, in a fixed order. */
export async function schemaOf(db: Queryable): Promise<string[]> {
  const all: string[] = [];
  for (const query of QUERIES) {
    const { rows } = await db.query<{ format: string }>(query);
    all.push(...rows.map(({ format }) => format).sort());
  }
  return all;
}
