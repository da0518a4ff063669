/* A library to preload: makes one chosen system call on files below a directory fail, or write only a part.

   DISK_FAULTS_FOLDER names the directory. DISK_FAULTS_CONTROL names a file of `struct control`, which several processes may share:
   calls of each kind are counted there, over all of them. Both variables are read at the first call after they are set,
   so a process that was loaded before can be forked for each trial. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { OPEN, WRITE, FSYNC, FTRUNCATE, FALLOCATE, MMAP, RENAME, KINDS };

struct control {
    int64_t kind;                    /* of the call that fails; -1: none */
    int64_t nth;                     /* which of these calls, from 1 */
    int64_t error;                   /* errno; 0: the call writes only a part, or none if it has but one byte */
    _Atomic int64_t counts[KINDS];   /* calls so far */
    _Atomic int64_t fired;           /* how many calls have failed */
    char what[512];                  /* the call that failed, and its file */
};

static struct control *control;
static char root[PATH_MAX];
static size_t root_length;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

static int is_ready(void) {
    if (control)
        return 1;
    const char *path = getenv("DISK_FAULTS_CONTROL"), *folder = getenv("DISK_FAULTS_FOLDER");
    if (!path || !folder)
        return 0;
    int file = REAL(open)(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return 0;
    void *mapped = REAL(mmap)(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return 0;
    snprintf(root, sizeof root, "%s/", folder);
    root_length = strlen(root);
    control = mapped;
    return 1;
}

/* Count a call on a path; return whether it shall fail. */
static int fails_at(enum kind kind, const char *call, const char *path) {
    if (strncmp(path, root, root_length) != 0)
        return 0;
    int64_t number = atomic_fetch_add(&control->counts[kind], 1) + 1;
    if (kind != control->kind || number != control->nth)
        return 0;
    snprintf(control->what, sizeof control->what, "%s %s", call, path + root_length);
    atomic_fetch_add(&control->fired, 1);
    return 1;
}

static int path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

static int fails(enum kind kind, const char *call, int file) {
    char path[PATH_MAX];
    int before = errno;
    int result = file >= 0 && is_ready() && path_of(file, path) && fails_at(kind, call, path);
    errno = before;
    return result;
}

static int fails_below(enum kind kind, const char *call, int folder, const char *name) {
    char path[PATH_MAX], whole[2 * PATH_MAX];
    if (!is_ready())
        return 0;
    if (name[0] == '/' || folder == AT_FDCWD)
        return fails_at(kind, call, name);
    if (!path_of(folder, path))
        return 0;
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    return fails_at(kind, call, whole);
}

#define REFUSE(value)              \
    do {                           \
        errno = (int)control->error; \
        return value;              \
    } while (0)

#define MODE_OF(flags)                             \
    mode_t mode = 0;                               \
    if (flags & (O_CREAT | O_TMPFILE)) {           \
        va_list arguments;                         \
        va_start(arguments, flags);                \
        mode = va_arg(arguments, mode_t);          \
        va_end(arguments);                         \
    }

#define DEFINE_OPEN(name)                                   \
    int name(const char *path, int flags, ...) {            \
        MODE_OF(flags)                                      \
        if (fails_below(OPEN, "open", AT_FDCWD, path))      \
            REFUSE(-1);                                     \
        return REAL(name)(path, flags, mode);               \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                 \
    int name(int folder, const char *path, int flags, ...) { \
        MODE_OF(flags)                                      \
        if (fails_below(OPEN, "open", folder, path))        \
            REFUSE(-1);                                     \
        return REAL(name)(folder, path, flags, mode);       \
    }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

int mkdir(const char *path, mode_t mode) {
    if (fails_below(OPEN, "mkdir", AT_FDCWD, path))
        REFUSE(-1);
    return REAL(mkdir)(path, mode);
}

ssize_t write(int file, const void *content, size_t size) {
    if (fails(WRITE, "write", file)) {
        if (control->error)
            REFUSE(-1);
        size = size > 1 ? size / 2 : size;
    }
    return REAL(write)(file, content, size);
}

#define DEFINE_PWRITE(name, offset_type)                                             \
    ssize_t name(int file, const void *content, size_t size, offset_type offset) {   \
        if (fails(WRITE, "pwrite", file)) {                                          \
            if (control->error)                                                      \
                REFUSE(-1);                                                          \
            size = size > 1 ? size / 2 : size;                                       \
        }                                                                            \
        return REAL(name)(file, content, size, offset);                              \
    }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

int fsync(int file) {
    if (fails(FSYNC, "fsync", file))
        REFUSE(-1);
    return REAL(fsync)(file);
}

int fdatasync(int file) {
    if (fails(FSYNC, "fdatasync", file))
        REFUSE(-1);
    return REAL(fdatasync)(file);
}

#define DEFINE_FTRUNCATE(name, offset_type)          \
    int name(int file, offset_type size) {           \
        if (fails(FTRUNCATE, "ftruncate", file))     \
            REFUSE(-1);                              \
        return REAL(name)(file, size);               \
    }
DEFINE_FTRUNCATE(ftruncate, off_t)
DEFINE_FTRUNCATE(ftruncate64, off64_t)

#define DEFINE_FALLOCATE(name, offset_type)                       \
    int name(int file, offset_type offset, offset_type size) {    \
        if (fails(FALLOCATE, "posix_fallocate", file))            \
            return (int)control->error;                           \
        return REAL(name)(file, offset, size);                    \
    }
DEFINE_FALLOCATE(posix_fallocate, off_t)
DEFINE_FALLOCATE(posix_fallocate64, off64_t)

#define DEFINE_MMAP(name, offset_type)                                                            \
    void *name(void *at, size_t size, int protection, int flags, int file, offset_type offset) {  \
        if (!(flags & MAP_ANONYMOUS) && fails(MMAP, "mmap", file))                                \
            REFUSE(MAP_FAILED);                                                                   \
        return REAL(name)(at, size, protection, flags, file, offset);                             \
    }
DEFINE_MMAP(mmap, off_t)
DEFINE_MMAP(mmap64, off64_t)

int msync(void *at, size_t size, int flags) {
    /* Which file is mapped there is not asked: the server syncs no other mappings than those of its tables. */
    if (is_ready() && fails_at(FSYNC, "msync", root))
        REFUSE(-1);
    return REAL(msync)(at, size, flags);
}

int rename(const char *from, const char *to) {
    if (fails_below(RENAME, "rename", AT_FDCWD, from))
        REFUSE(-1);
    return REAL(rename)(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    if (fails_below(RENAME, "rename", from_folder, from))
        REFUSE(-1);
    return REAL(renameat)(from_folder, from, to_folder, to);
}
