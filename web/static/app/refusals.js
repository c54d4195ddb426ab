// Which fields of a form a refusal is about: the sentences of the API begin with the name of one.

/** Without what differs between a path in an answer and the name of a field: case, underscores, places in lists. @param {string} text */
const plain = (text) => text.toLowerCase().replace(/_|\[\d*\]|\.\d+/g, "");

/** How well a field's name fits a path; 0: not at all. @param {string} path @param {string} name */
function fit(path, name) {
  if (path === name) return 3;
  if (path.startsWith(`${name}.`) || path.endsWith(`.${name}`)) return 2;
  return path.split(".").includes(name) ? 1 : 0;
}

/** The field of a path, if there is one. @param {string} path @param {string[]} fields each with one name or several */
function fieldOf(path, fields) {
  const fits = fields.map((field) => Math.max(...field.split(" ").map((name) => fit(plain(path), plain(name)))));
  const best = Math.max(0, ...fits);
  return best ? fields[fits.indexOf(best)] : undefined;
}

/**
 * What to say at which field, and what belongs to none of them.
 * @param {string} message of the API: `name: '': expected …`, several with semicolons or on lines of their own
 * @param {string[]} fields of the form, as its inputs are named
 */
export function placed(message, fields) {
  /** @type {Record<string, string>} */
  const at = {};
  /** @type {string[]} */
  const rest = [];
  for (const part of message.split(/\n|; (?=(?:[A-Za-z_][\w.[\]-]*|the body): )/)) {
    const [, inConfig, ofIt] = /<config>\.?([^\s:]*): (.*)/s.exec(part) ?? [];
    const [, path = inConfig, what = ofIt] = (inConfig === undefined && /^([A-Za-z_][\w.[\]-]*)(?:: | (?='))(.*)/s.exec(part)) || [];
    const field = (path && fieldOf(path, fields)) || (/already exists/.test(part) && fields.find((each) => /name$/.test(each)));
    const whole = /config/.test(part) && fields.find((each) => /config/i.test(each));
    if (field) at[field] = [at[field], /already exists/.test(part) ? part : what].filter(Boolean).join("; ");
    else if (whole) at[whole] = [at[whole], part].filter(Boolean).join("\n");
    else rest.push(part);
  }
  return { at, rest: rest.join("; ") };
}
