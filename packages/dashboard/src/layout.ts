/**
 * Places the nodes of a graph in columns, so that most edges point one way; in a cycle, one edge
 * points back.
 */

export interface Node {
  readonly id: string;
}

export interface Edge {
  readonly from: string;
  readonly to: string;
}

/**
 * Column 0 has those that point at nothing. Nodes of a column are ordered by where those stand that
 * they point at.
 */
export function layers(nodes: readonly Node[], edges: readonly Edge[]): Map<string, { column: number; row: number }> {
  const out = new Map<string, string[]>(nodes.map(({ id }) => [id, []]));
  for (const { from, to } of edges) out.get(from)?.push(to);
  const columns = new Map<string, number>();
  // Nothing recurses: a chain of waiting sessions can be long. `open` are those on the way, to
  // which an edge goes back.
  const open = new Set<string>();
  for (const { id } of nodes) {
    const stack = [id];
    while (stack.length > 0) {
      const top = stack.at(-1)!;
      if (columns.has(top)) {
        stack.pop();
        continue;
      }
      open.add(top);
      const next = out.get(top)!.filter((to) => !open.has(to));
      const unknown = next.filter((to) => !columns.has(to));
      if (unknown.length > 0) {
        stack.push(unknown[0]!);
        continue;
      }
      columns.set(top, Math.max(-1, ...next.map((to) => columns.get(to)!)) + 1);
      open.delete(top);
      stack.pop();
    }
  }
  const byColumn: string[][] = [];
  for (const { id } of nodes) (byColumn[columns.get(id)!] ??= []).push(id);
  const rows = new Map<string, number>();
  for (const column of byColumn) {
    const centre = (id: string) => {
      const known = out.get(id)!.flatMap((to) => rows.get(to) ?? []);
      return known.length === 0 ? Infinity : known.reduce((sum, row) => sum + row, 0) / known.length;
    };
    const order = new Map(column.map((id) => [id, centre(id)]));
    column.sort((a, b) => order.get(a)! - order.get(b)! || 0);
    // As near to what it points at as those above leave room.
    let row = 0;
    for (const id of column) {
      const wish = order.get(id)!;
      row = Math.max(row, Number.isFinite(wish) ? Math.floor(wish) : row);
      rows.set(id, row);
      row += 1;
    }
  }
  return new Map(nodes.map(({ id }) => [id, { column: columns.get(id)!, row: rows.get(id)! }]));
}
