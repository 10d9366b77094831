/* A disk whose power can be cut, for tests. Preloaded into a process, it keeps a file PATH.synced beside each PATH of
 * SQLite's that ends in `.db` or `.db-wal`, with what a disk that loses its cache has of it: everything that was there
 * when the process first wrote to it, and of later writes those that were synced. Where POWER_SYNC is `ignored`, a sync
 * writes nothing: a disk that lies. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What was done to a file and not synced. */
struct change {
    struct change *next;
    enum { WRITTEN, CUT } kind;
    off_t at;
    size_t length;
    char bytes[];
};

struct file {
    struct file *next;
    dev_t device;
    ino_t inode;
    int synced; /* the descriptor of PATH.synced */
    struct change *first, **end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *files;

static void fail(const char *what) {
    perror(what);
    abort();
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real && !(real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name))) fail(#name)

static void write_all(int fd, const char *bytes, size_t length, off_t at) {
    REAL(pwrite64);
    while (length > 0) {
        ssize_t wrote = real(fd, bytes, length, at);
        if (wrote <= 0) fail("a synced file cannot be written");
        bytes += wrote, length -= wrote, at += wrote;
    }
}

static int has_end(const char *path, const char *end) {
    size_t length = strlen(path), of_end = strlen(end);
    return length >= of_end && !strcmp(path + length - of_end, end);
}

/* Opens PATH.synced, with what PATH has now. */
static int open_synced(const char *path) {
    REAL(ftruncate64);
    char synced[4096];
    snprintf(synced, sizeof synced, "%s.synced", path);
    int from = open(path, O_RDONLY | O_CLOEXEC), to = open(synced, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (from < 0 || to < 0 || real(to, 0)) fail(synced);
    char bytes[65536];
    off_t at = 0;
    for (ssize_t read; (read = pread64(from, bytes, sizeof bytes, at)) > 0; at += read)
        write_all(to, bytes, read, at);
    close(from);
    return to;
}

/* The file of SQLite's behind a descriptor, or NULL. */
static struct file *file_of(int fd) {
    struct stat stat;
    if (fstat(fd, &stat) || !S_ISREG(stat.st_mode)) return NULL;
    for (struct file *file = files; file; file = file->next)
        if (file->device == stat.st_dev && file->inode == stat.st_ino) return file;
    char descriptor[64], path[4000];
    snprintf(descriptor, sizeof descriptor, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(descriptor, path, sizeof path - 1);
    if (length < 0) fail(descriptor);
    path[length] = 0;
    if (!has_end(path, ".db") && !has_end(path, ".db-wal")) return NULL;
    struct file *file = malloc(sizeof *file);
    if (!file) fail("malloc");
    *file = (struct file){files, stat.st_dev, stat.st_ino, open_synced(path), NULL, &file->first};
    return files = file;
}

static void note(struct file *file, int kind, const void *bytes, size_t length, off_t at) {
    struct change *change = malloc(sizeof *change + length);
    if (!change) fail("malloc");
    change->next = NULL, change->kind = kind, change->at = at, change->length = length;
    if (length) memcpy(change->bytes, bytes, length);
    *file->end = change;
    file->end = &change->next;
}

/* What a sync of the file makes durable. */
static void sync_changes(struct file *file) {
    REAL(ftruncate64);
    const char *how = getenv("POWER_SYNC");
    int is_ignored = how && !strcmp(how, "ignored");
    while (file->first) {
        struct change *change = file->first;
        if (is_ignored) {
        } else if (change->kind == WRITTEN) {
            write_all(file->synced, change->bytes, change->length, change->at);
        } else if (real(file->synced, change->at)) {
            fail("a synced file cannot be cut");
        }
        file->first = change->next;
        free(change);
    }
    file->end = &file->first;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    REAL(pwrite64);
    pthread_mutex_lock(&lock);
    struct file *file = file_of(fd);
    ssize_t wrote = real(fd, bytes, length, at);
    if (file && wrote > 0) note(file, WRITTEN, bytes, wrote, at);
    pthread_mutex_unlock(&lock);
    return wrote;
}

int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    pthread_mutex_lock(&lock);
    struct file *file = file_of(fd);
    int failed = real(fd, length);
    if (file && !failed) note(file, CUT, NULL, 0, length);
    pthread_mutex_unlock(&lock);
    return failed;
}

static int sync_by(int (*real)(int), int fd) {
    pthread_mutex_lock(&lock);
    struct file *file = file_of(fd);
    int failed = real(fd);
    if (file && !failed) sync_changes(file);
    pthread_mutex_unlock(&lock);
    return failed;
}

int fsync(int fd) {
    REAL(fsync);
    return sync_by(real, fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return sync_by(real, fd);
}
