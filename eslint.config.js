/* The page's JavaScript: short functions, short lines, no leftovers. Types and names are checked by tsc. */

export default [
  { ignores: [".venv/", "node_modules/", "build/", "dist/", "runs/"] },
  {
    files: ["regard/viewer/page/*.js", "eslint.config.js"],
    languageOptions: { ecmaVersion: "latest", sourceType: "module" },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "max-len": ["error", { code: 110 }],
      "max-lines-per-function": ["error", { max: 60, skipBlankLines: true, skipComments: true }],
      "no-unused-vars": "error",
      eqeqeq: "error",
      "prefer-const": "error",
      "no-var": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-dupe-keys": "error",
      "no-shadow-restricted-names": "error",
      "no-unreachable": "error",
    },
  },
];
