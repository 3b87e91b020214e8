/** Standalone output has the addon only if the package is external: then its files are traced. */
export default process.env.STANDALONE ? { output: 'standalone', serverExternalPackages: ['lockkeeper'] } : {};
